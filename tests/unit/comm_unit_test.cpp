// The byte stream that control messages are packed with.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "kernels/base/byte_stream.hpp"

namespace testbed {
namespace {

struct Pair {
  int32_t a;
  double b;
  bool operator==(const Pair&) const = default;
};

std::vector<std::byte> packed() {
  ByteWriter out;
  out.put(std::numeric_limits<int64_t>::min());
  out.put(std::string("a\0b", 3));
  out.put(std::vector<Pair>{{1, 0.5}, {-2, -0.25}});
  out.put(std::string());
  out.put(std::vector<int64_t>{});
  out.put(uint8_t{255});
  return out.take();
}

TEST(ByteStream, round_trip) {
  const std::vector<std::byte> bytes = packed();
  ByteReader in(bytes);
  int64_t number = 0;
  std::string text;
  std::vector<Pair> pairs;
  std::string no_text = "old";
  std::vector<int64_t> no_numbers = {1, 2};
  uint8_t last = 0;
  in.get(number);
  in.get(text);
  in.get(pairs);
  in.get(no_text);
  in.get(no_numbers);
  EXPECT_FALSE(in.at_end());
  in.get(last);
  EXPECT_EQ(number, std::numeric_limits<int64_t>::min());
  EXPECT_EQ(text, std::string("a\0b", 3));
  EXPECT_EQ(pairs, (std::vector<Pair>{{1, 0.5}, {-2, -0.25}}));
  EXPECT_EQ(no_text, "");
  EXPECT_TRUE(no_numbers.empty());
  EXPECT_EQ(last, 255);
  EXPECT_TRUE(in.at_end());
}

TEST(ByteStream, text) {
  const std::string text = "line\nline \xc3\xa9";
  EXPECT_EQ(unpack_text(pack_text(text)), text);
  EXPECT_EQ(unpack_text(pack_text("")), "");
}

// Wherever a message is cut, some read fails; none goes past its end.
TEST(ByteStream, a_cut_message_is_an_error) {
  const std::vector<std::byte> whole = packed();
  for (size_t length = 0; length < whole.size(); ++length) {
    const std::vector<std::byte> cut(whole.begin(),
                                     whole.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_THROW(
        {
          ByteReader in(cut);
          int64_t number = 0;
          std::string text;
          std::vector<Pair> pairs;
          std::vector<int64_t> numbers;
          uint8_t last = 0;
          in.get(number);
          in.get(text);
          in.get(pairs);
          in.get(text);
          in.get(numbers);
          in.get(last);
        },
        InternalError)
        << length;
  }
}

TEST(ByteStream, a_length_beyond_the_message_allocates_nothing) {
  ByteWriter out;
  out.put(std::numeric_limits<uint64_t>::max() / 8);
  const std::vector<std::byte> bytes = out.take();
  std::vector<int64_t> numbers;
  EXPECT_THROW(ByteReader(bytes).get(numbers), InternalError);
}

}  // namespace
}  // namespace testbed
