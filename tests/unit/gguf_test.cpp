// GGUF: metadata access, tensor table, split sets, and hostile files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/weights/gguf_file.hpp"
#include "tests/unit/weights_builders.hpp"

namespace testbed {
namespace {

using test::GgufBuilder;
using test::little_endian;
using test::weights_error;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

GgufFile parse(const std::string& bytes) {
  return GgufFile::parse(test::as_bytes(bytes), "f.gguf");
}

std::string parse_error(const std::string& bytes) {
  return weights_error([&] { parse(bytes); });
}

constexpr uint32_t array_type = 9;

template <typename T>
std::string array_of(uint32_t type, const std::vector<T>& values) {
  std::string out = little_endian(type) + little_endian<uint64_t>(values.size());
  for (const T& value : values) {
    if constexpr (std::is_same_v<T, std::string>)
      out += GgufBuilder::string(value);
    else
      out += little_endian(value);
  }
  return out;
}

std::string small_file(uint32_t version = 3) {
  GgufBuilder b;
  b.version = version;
  b.text("general.architecture", "llama").u32("n", 7);
  b.tensor("t", {2, 3}, 0, std::string(24, 't')).tensor("u", {4}, 1, std::string(8, 'u'));
  return b.bytes();
}

TEST(Gguf, metadata_of_every_type) {
  GgufBuilder b;
  b.metadata("u8", 0, little_endian<uint8_t>(200)).metadata("i8", 1, little_endian<int8_t>(-3));
  b.u16("u16", 65535).metadata("i16", 3, little_endian<int16_t>(-300)).u32("u32", 4000000000U);
  b.metadata("i32", 5, little_endian<int32_t>(-5)).metadata("f32", 6, little_endian(1.5F));
  b.metadata("yes", 7, "\1").text("s", "text").metadata("u64", 10, little_endian<uint64_t>(1));
  b.metadata("i64", 11, little_endian<int64_t>(-9)).metadata("f64", 12, little_endian(0.1));
  b.metadata("strings", array_type, array_of<std::string>(8, {"a", "", "bcd"}));
  b.metadata("ints", array_type, array_of<int32_t>(5, {1, -2}));
  b.metadata("floats", array_type, array_of<float>(6, {0.5F}));
  b.metadata("bools", array_type, array_of<uint8_t>(7, {1, 0}));
  b.metadata("none", array_type, array_of<int32_t>(5, {}));
  const std::string bytes = b.bytes();
  const GgufFile file = parse(bytes);
  EXPECT_EQ(file.get_int("u8"), 200);
  EXPECT_EQ(file.get_int("i8"), -3);
  EXPECT_EQ(file.get_int("u16"), 65535);
  EXPECT_EQ(file.get_int("i16"), -300);
  EXPECT_EQ(file.get_int("u32"), 4000000000);
  EXPECT_EQ(file.get_int("i32"), -5);
  EXPECT_EQ(file.get_int("u64"), 1);
  EXPECT_EQ(file.get_int("i64"), -9);
  EXPECT_EQ(file.get_float("f32"), 1.5);
  EXPECT_EQ(file.get_float("f64"), 0.1);
  EXPECT_TRUE(file.get_bool("yes"));
  EXPECT_EQ(file.get_string("s"), "text");
  EXPECT_THAT(file.get_strings("strings"), ElementsAre("a", "", "bcd"));
  EXPECT_THAT(file.get_ints("ints"), ElementsAre(1, -2));
  EXPECT_THAT(file.get_floats("floats"), ElementsAre(0.5));
  EXPECT_THAT(file.get_bools("bools"), ElementsAre(true, false));
  EXPECT_TRUE(file.get_ints("none").empty());
  EXPECT_TRUE(file.is_array("ints"));
  EXPECT_FALSE(file.is_array("u8"));
  EXPECT_EQ(file.type("ints"), GgufType::array);
  EXPECT_FALSE(file.find_int("absent").has_value());
}

TEST(Gguf, wrong_or_missing_metadata_names_the_key) {
  GgufBuilder b;
  b.text("s", "x").metadata("big", 10, little_endian<uint64_t>(UINT64_MAX));
  b.metadata("maybe", 7, "\2").metadata("ints", array_type, array_of<int32_t>(5, {1}));
  const std::string bytes = b.bytes();
  const GgufFile file = parse(bytes);
  EXPECT_EQ(weights_error([&] { file.get_int("s"); }),
            "f.gguf: metadata 's' is string, expected an integer");
  EXPECT_EQ(weights_error([&] { (void)file.find_float("s"); }),
            "f.gguf: metadata 's' is string, expected a float");
  EXPECT_EQ(weights_error([&] { file.get_int("ints"); }),
            "f.gguf: metadata 'ints' is an array of int32, expected a single value");
  EXPECT_EQ(weights_error([&] { file.get_strings("ints"); }),
            "f.gguf: metadata 'ints' is an array of int32, expected an array of strings");
  EXPECT_EQ(weights_error([&] { file.get_int("no"); }), "f.gguf: metadata 'no' is missing");
  EXPECT_THAT(weights_error([&] { file.get_int("big"); }), HasSubstr("out of range"));
  EXPECT_THAT(weights_error([&] { file.get_bool("maybe"); }), HasSubstr("2 is not a bool"));
}

TEST(Gguf, tensors_of_both_versions) {
  for (const uint32_t version : {2U, 3U}) {
    const std::string bytes = small_file(version);
    const GgufFile file = parse(bytes);
    EXPECT_EQ(file.version(), version);
    const GgufTensor* u = file.find_tensor("u");
    ASSERT_NE(u, nullptr);
    EXPECT_EQ(u->dims, std::vector<int64_t>{4});
    EXPECT_EQ(u->ggml_type, 1U);
    ASSERT_EQ(u->data.size(), 8U);
    EXPECT_EQ(u->data[0], std::byte{'u'});
    EXPECT_EQ(file.find_tensor("v"), nullptr);
  }
}

TEST(Gguf, other_files_and_versions_are_refused) {
  EXPECT_THAT(parse_error("GGML" + small_file().substr(4)), HasSubstr("wrong magic"));
  EXPECT_THAT(parse_error(small_file(1)), HasSubstr("version 1 is not supported"));
  EXPECT_THAT(parse_error(small_file(0x03000000)), HasSubstr("big-endian"));
}

TEST(Gguf, D15_alignment_0_is_refused) {
  EXPECT_EQ(parse_error(GgufBuilder().u32("general.alignment", 0).bytes()),
            "f.gguf: general.alignment is 0, it must be a positive multiple of 8");
  EXPECT_THAT(parse_error(GgufBuilder().u32("general.alignment", 12).bytes()),
              HasSubstr("multiple of 8"));
}

TEST(Gguf, D15_wrong_metadata_type_is_refused) {
  EXPECT_EQ(parse_error(GgufBuilder().text("general.alignment", "x").bytes()),
            "f.gguf: metadata 'general.alignment' is string, expected an integer");
  EXPECT_EQ(parse_error(GgufBuilder().metadata("k", 77, "xxxxxxxx").bytes()),
            "f.gguf: metadata 'k' has unknown type 77");
  EXPECT_THAT(parse_error(GgufBuilder()
                              .metadata("k",
                                        array_type,
                                        little_endian(array_type) + little_endian<uint64_t>(1) +
                                            array_of<int32_t>(5, {1}))
                              .bytes()),
              HasSubstr("metadata 'k': arrays of arrays"));
  EXPECT_THAT(parse_error(GgufBuilder().u32("k", 1).u32("k", 2).bytes()),
              HasSubstr("metadata 'k' appears twice"));
}

TEST(Gguf, D15_n_dims_9_is_refused) {
  EXPECT_EQ(parse_error(GgufBuilder().raw_tensor("t", {1, 1, 1, 1, 1, 1, 1, 1, 1}, 0, 0).bytes()),
            "f.gguf: tensor 't' has 9 dimensions, at most 4 are allowed");
}

TEST(Gguf, D15_huge_counts_are_refused) {
  const std::string head = "GGUF" + little_endian<uint32_t>(3);
  const std::string pad(64, '\0');
  EXPECT_THAT(parse_error(head + little_endian<uint64_t>(0) + little_endian(UINT64_MAX) + pad),
              HasSubstr("metadata count 18446744073709551615"));
  EXPECT_THAT(parse_error(head + little_endian(UINT64_MAX) + little_endian<uint64_t>(0) + pad),
              HasSubstr("tensor count 18446744073709551615"));
  EXPECT_THAT(parse_error(head + little_endian<uint64_t>(0) + little_endian<uint64_t>(1) +
                          little_endian<uint64_t>(uint64_t{1} << 60) + pad),
              HasSubstr("key of metadata entry 0 is 1152921504606846976 bytes long"));
  for (const uint32_t type : {8U, 0U, 12U})
    EXPECT_THAT(parse_error(GgufBuilder()
                                .metadata("k",
                                          array_type,
                                          little_endian(type) + little_endian(UINT64_MAX / 2) + pad)
                                .bytes()),
                HasSubstr("truncated: metadata 'k' has 9223372036854775807"));
  EXPECT_THAT(parse_error(GgufBuilder().metadata("k", 8, little_endian(UINT64_MAX) + pad).bytes()),
              HasSubstr("truncated: metadata 'k' needs 18446744073709551615 bytes"));
}

TEST(Gguf, D15_truncated_tail_is_refused) {
  GgufBuilder b;
  b.tensor("t", {2, 3}, 0, std::string(24, 't'));
  const std::string whole = b.bytes();
  EXPECT_THAT(parse_error(whole.substr(0, whole.size() - 9)),
              HasSubstr("truncated: tensor 't' has 24 bytes at data offset 0, the file has 23"));
}

TEST(Gguf, every_truncation_is_refused) {
  const std::string whole = small_file();
  for (size_t n = 0; n < whole.size() - 24; ++n) {  // the last tensor's padding may be absent
    const std::string error = parse_error(whole.substr(0, n));
    EXPECT_TRUE(error.find("truncated") != std::string::npos ||
                error.find("that are left") != std::string::npos)
        << n << ": " << error;
  }
}

TEST(Gguf, D15_overlapping_tensors_are_refused) {
  GgufBuilder b;
  b.tensor("t", {16}, 0, std::string(64, 't')).raw_tensor("u", {8}, 0, 32);
  EXPECT_EQ(parse_error(b.bytes()), "f.gguf: tensors 't' and 'u' overlap");
}

TEST(Gguf, D15_zero_dim_is_refused) {
  EXPECT_EQ(parse_error(GgufBuilder().raw_tensor("t", {4, 0}, 0, 0).bytes()),
            "f.gguf: tensor 't': dimension 1 is zero");
}

TEST(Gguf, impossible_tensors_are_refused) {
  const auto error = [](const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
    return parse_error(GgufBuilder().raw_tensor("t", dims, type, offset).bytes());
  };
  EXPECT_THAT(error({uint64_t{1} << 40, uint64_t{1} << 40}, 0, 0), HasSubstr("out of range"));
  EXPECT_THAT(error({uint64_t{1} << 62}, 0, 0), HasSubstr("bytes is out of range"));
  EXPECT_THAT(error({UINT64_MAX}, 0, 0), HasSubstr("out of range"));
  EXPECT_THAT(error({1}, 5, 0), HasSubstr("tensor type 5, which ggml does not define"));
  EXPECT_THAT(error({33}, 8, 0), HasSubstr("rows of 33 elements do not fill whole Q8_0 blocks"));
  EXPECT_THAT(error({1}, 0, 5), HasSubstr("offset 5 is not a multiple of the alignment 32"));
  EXPECT_THAT(error({1}, 0, UINT64_MAX - 31), HasSubstr("truncated: tensor 't'"));
  EXPECT_THAT(
      parse_error(GgufBuilder().tensor("t", {1}, 0, "1234").tensor("t", {1}, 0, "1234").bytes()),
      HasSubstr("tensor 't' appears twice"));
}

TEST(Gguf, D16_file_without_tensors_is_readable_as_metadata) {
  const std::string bytes = GgufBuilder().text("general.architecture", "llama").bytes();
  const GgufFile file = parse(bytes);
  EXPECT_TRUE(file.tensors().empty());
  EXPECT_EQ(file.get_string("general.architecture"), "llama");
}

std::string part(uint16_t no, uint16_t count, const std::string& tensor) {
  GgufBuilder b;
  if (no == 0) b.text("general.architecture", "llama");
  b.u16("split.no", no).u16("split.count", count);
  b.metadata("split.tensors.count", 5, little_endian<int32_t>(2));
  b.tensor(tensor, {1}, 0, "1234");
  return b.bytes();
}

TEST(Gguf, D16_two_parts_are_merged) {
  const test::TemporaryFolder folder;
  const auto first = folder.write("m-00001-of-00002.gguf", part(0, 2, "a"));
  const auto second = folder.write("m-00002-of-00002.gguf", part(1, 2, "b"));
  const GgufFile file = GgufFile::open(first);
  ASSERT_EQ(file.tensors().size(), 2U);
  EXPECT_EQ(file.find_tensor("a")->file, first.string());
  EXPECT_EQ(file.find_tensor("b")->file, second.string());
  EXPECT_EQ(file.get_string("general.architecture"), "llama");
}

TEST(Gguf, D16_wrong_split_sets_are_refused) {
  const test::TemporaryFolder folder;
  const auto open_error = [](const std::filesystem::path& path) {
    return weights_error([&] { GgufFile::open(path); });
  };
  const auto first = folder.write("m-00001-of-00002.gguf", part(0, 2, "a"));
  const std::string second = (folder.path() / "m-00002-of-00002.gguf").string();
  EXPECT_THAT(open_error(first), HasSubstr("part 2 of 2 is missing: " + second));
  folder.write("m-00002-of-00002.gguf", part(1, 2, "b"));
  EXPECT_THAT(open_error(second), HasSubstr("give the first part"));
  folder.write("m-00002-of-00002.gguf", part(0, 2, "b"));
  EXPECT_THAT(open_error(first), HasSubstr("split.no 0 of split.count 2, expected 1 of 2"));
  folder.write("m-00002-of-00002.gguf", part(1, 2, "a"));
  EXPECT_THAT(open_error(first), HasSubstr("tensor 'a' appears twice"));
  folder.write("m-00002-of-00002.gguf",
               GgufBuilder().u16("split.no", 1).u16("split.count", 2).bytes());
  EXPECT_THAT(open_error(first), HasSubstr("hold 1 tensors, split.tensors.count says 2"));
  EXPECT_THAT(open_error(folder.write("renamed.gguf", part(0, 2, "a"))),
              HasSubstr("must be named …-00001-of-00002.gguf"));
}

}  // namespace
}  // namespace testbed
