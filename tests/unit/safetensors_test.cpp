// The safetensors header: what loads, and what is refused with which cause.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/weights/safetensors_file.hpp"
#include "tests/unit/weights_builders.hpp"

namespace testbed {
namespace {

using test::entry;
using test::safetensors;
using test::weights_error;
using testing::AllOf;
using testing::HasSubstr;

std::string parse_error(const std::string& bytes) {
  return weights_error([&] { SafetensorsFile::parse(test::as_bytes(bytes), "f.safetensors"); });
}

const std::string two_tensors =
    test::header({entry("a", "F32", "[2,3]", 0, 24), entry("b", "BF16", "[4]", 24, 32)});

TEST(Safetensors, tensors_and_their_bytes) {
  const std::string bytes = safetensors(two_tensors + "   ", std::string(24, 'a') + "bbbbbbbb");
  const auto file = SafetensorsFile::parse(test::as_bytes(bytes), "f");
  ASSERT_EQ(file.tensors().size(), 2U);
  const SafetensorsTensor& b = file.tensors().at("b");
  EXPECT_EQ(b.dtype, "BF16");
  EXPECT_EQ(b.shape, std::vector<int64_t>{4});
  ASSERT_EQ(b.data.size(), 8U);
  EXPECT_EQ(b.data[0], std::byte{'b'});
}

TEST(Safetensors, D13_nested_metadata_and_scalar_shape_load) {
  const std::string header =
      test::header({R"("__metadata__":{"format":"pt","more":{"deep":[1,{"x":null}]}})",
                    entry("s", "F32", "[]", 0, 4)});
  const std::string bytes = safetensors(header, "1234");
  const auto file = SafetensorsFile::parse(test::as_bytes(bytes), "f");
  ASSERT_EQ(file.tensors().size(), 1U);
  EXPECT_TRUE(file.tensors().at("s").shape.empty());
  EXPECT_EQ(file.tensors().at("s").data.size(), 4U);
}

TEST(Safetensors, D13_duplicate_key_is_refused) {
  const std::string header =
      test::header({entry("a", "F32", "[1]", 0, 4), entry("a", "F32", "[1]", 4, 8)});
  EXPECT_THAT(parse_error(safetensors(header, "12345678")), HasSubstr("key 'a' appears twice"));
  const std::string inner = R"({"a":{"dtype":"F32","shape":[1],"shape":[2],"data_offsets":[0,8]}})";
  EXPECT_THAT(parse_error(safetensors(inner, "12345678")), HasSubstr("key 'shape' appears twice"));
}

TEST(Safetensors, D13_126_MB_header_is_refused) {
  EXPECT_THAT(
      parse_error(test::little_endian<uint64_t>(126'000'000) + "{}"),
      HasSubstr("header of 126000000 bytes is longer than the format's limit of 100000000"));
  EXPECT_THAT(parse_error(test::little_endian<uint64_t>(UINT64_MAX) + "{}"),
              HasSubstr("longer than the format's limit"));
}

TEST(Safetensors, D13_shape_offset_mismatch_is_refused) {
  const std::string header = test::header({entry("a", "F32", "[2,3]", 0, 20)});
  EXPECT_THAT(parse_error(safetensors(header, std::string(20, 'x'))),
              AllOf(HasSubstr("tensor 'a': shape [2, 3] of F32 needs 24 bytes"),
                    HasSubstr("[0, 20] hold 20")));
}

TEST(Safetensors, D13_truncated_file_is_refused) {
  const std::string whole = safetensors(two_tensors, std::string(32, 'x'));
  EXPECT_THAT(parse_error(whole.substr(0, whole.size() - 1)),
              HasSubstr("tensor 'b': truncated: its data ends at byte 32 of the data, the file "
                        "holds 31"));
  EXPECT_THAT(parse_error(whole.substr(0, 50)), HasSubstr("truncated: the header has"));
  EXPECT_THAT(parse_error("1234"), HasSubstr("truncated: 4 bytes"));
  EXPECT_THAT(parse_error(""), HasSubstr("truncated: 0 bytes"));
}

TEST(Safetensors, every_truncation_is_refused) {
  const std::string whole = safetensors(two_tensors, std::string(32, 'x'));
  for (size_t n = 0; n < whole.size(); ++n)
    EXPECT_THAT(parse_error(whole.substr(0, n)), HasSubstr("truncated")) << n;
}

TEST(Safetensors, D13_trailing_bytes_are_refused) {
  EXPECT_THAT(parse_error(safetensors(two_tensors, std::string(35, 'x'))),
              HasSubstr("3 trailing bytes after the last tensor"));
}

TEST(Safetensors, overlaps_and_holes_are_refused) {
  const std::string overlap =
      test::header({entry("a", "U8", "[8]", 0, 8), entry("b", "U8", "[8]", 4, 12)});
  EXPECT_THAT(parse_error(safetensors(overlap, std::string(12, 'x'))),
              HasSubstr("tensor 'b': its data overlaps that of tensor 'a'"));
  const std::string hole =
      test::header({entry("a", "U8", "[4]", 0, 4), entry("b", "U8", "[4]", 8, 12)});
  EXPECT_THAT(parse_error(safetensors(hole, std::string(12, 'x'))),
              HasSubstr("tensor 'b': a hole of 4 bytes"));
}

TEST(Safetensors, bad_headers_are_refused) {
  const auto refused = [](const std::string& header, const std::string& cause) {
    EXPECT_THAT(parse_error(safetensors(header, "")),
                AllOf(HasSubstr("f.safetensors: "), HasSubstr(cause)));
  };
  refused("", "does not start with '{'");
  refused("[]", "does not start with '{'");
  refused("{\"a\":", "not valid JSON");
  refused("{\"a\":1}", "tensor 'a': its header entry is not an object");
  refused(R"({"a":{"shape":[],"data_offsets":[0,0]}})", "tensor 'a': 'dtype' is missing");
  refused(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,0]}})",
          "'shape' has -1, expected a non-negative integer");
  refused(R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,0]}})", "'shape' has 1.5");
  refused(R"({"a":{"dtype":"F32","shape":[[[[]]]],"data_offsets":[0,0]}})", "'shape' has array");
  refused(R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,0]}})",
          "expected a non-negative integer");
  refused(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})",
          "its number of bytes is out of range");
  refused(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[4,0]}})", "run backwards");
  refused(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0]}})", "not [begin, end]");
}

TEST(Safetensors, missing_file_is_named) {
  EXPECT_THAT(weights_error([] { SafetensorsFile::open("/no/such.safetensors"); }),
              HasSubstr("/no/such.safetensors: cannot open"));
}

}  // namespace
}  // namespace testbed
