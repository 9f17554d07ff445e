#include "penstock/io/chunked_array.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bytes.h"
#include "memory_files.h"
#include "penstock/base/error.h"

namespace penstock {
namespace {

ChunkedArray squares(Shape shape, Shape chunk) {
  ChunkedArray array;
  array.name = "/X";
  array.shape = std::move(shape);
  array.chunk = std::move(chunk);
  uint64_t count = 1;
  for (size_t axis = 0; axis < array.chunk.size(); ++axis) {
    const int64_t length = std::max<int64_t>(array.chunk[axis], 1);
    const int64_t whole = std::max<int64_t>(array.shape[axis], 0);
    count *= static_cast<uint64_t>((whole + length - 1) / length);
  }
  array.chunks.resize(count);
  return array;
}

std::optional<Code> code_of_check(const ChunkedArray& array) {
  try {
    array.check();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("/X"), std::string::npos);
    return error.code();
  }
  return std::nullopt;
}

// Values of https://en.wikipedia.org/wiki/Fletcher%27s_checksum, where words are little-endian: the
// bytes of each word in the other order.
TEST(ChunkedArray, fletchers_sums_are_those_of_big_endian_words) {
  EXPECT_EQ(fletcher32(bytes_of("badcfe")), 0x56502D2Au);
  EXPECT_EQ(fletcher32({}), 0u);
  // Long enough for the sums to be folded several times; compared with a plain loop.
  std::string text(5001, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 37 + 251);
  uint64_t first = 0, second = 0;
  for (size_t i = 0; i < text.size(); i += 2) {
    const auto high = static_cast<uint8_t>(text[i]);
    const auto low = i + 1 < text.size() ? static_cast<uint8_t>(text[i + 1]) : uint8_t{0};
    first = (first + (high << 8 | low)) % 65535;
    second = (second + first) % 65535;
  }
  const uint32_t sum = fletcher32(bytes_of(text));
  EXPECT_EQ(sum % 65536 % 65535, first);
  EXPECT_EQ(sum / 65536 % 65535, second);
}

TEST(ChunkedArray, shuffled_values_are_put_together) {
  for (size_t width : {1, 2, 3, 4, 8, 16}) {
    const size_t values = 5, tail = 1;
    std::vector<std::byte> wanted(width * values + tail), stored(wanted.size()), got(wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = std::byte(i * 7 + 1);
    for (size_t i = 0; i < values; ++i) {
      for (size_t j = 0; j < width; ++j) stored[j * values + i] = wanted[i * width + j];
    }
    stored.back() = wanted.back();
    if (width == 1) stored = wanted;
    unshuffle(got, stored, width);
    EXPECT_EQ(got, wanted) << width;
  }
}

TEST(ChunkedArray, rows_are_put_together_of_all_their_chunks) {
  for (const Shape& chunk : {Shape{2, 3, 4, 5}, Shape{3, 2, 4, 2}, Shape{1, 1, 1, 1},
                             Shape{4, 3, 3, 5}, Shape{9, 9, 9, 9}, Shape{2, 2, 4, 5}}) {
    const ChunkedArray array = squares({5, 3, 4, 5}, chunk);
    array.check();
    const uint64_t across = array.chunks_per_row();
    for (uint64_t row = 0; row < 5; ++row) {
      std::vector<std::byte> got(array.row_bytes(), std::byte{255});
      for (uint64_t k = 0; k < across; ++k) {
        const uint64_t number = row / static_cast<uint64_t>(chunk[0]) * across + k;
        // What libhdf5 would have written: each value is its place in the array.
        std::vector<std::byte> decoded(array.chunk_bytes(), std::byte{254});
        uint64_t left = number;
        Shape first(4);
        for (size_t axis = 4; axis-- > 0;) {
          const int64_t grid = (array.shape[axis] + chunk[axis] - 1) / chunk[axis];
          first[axis] = static_cast<int64_t>(left) % grid * chunk[axis];
          left /= static_cast<uint64_t>(grid);
        }
        size_t at = 0;
        for (int64_t a = 0; a < chunk[0]; ++a) {
          for (int64_t b = 0; b < chunk[1]; ++b) {
            for (int64_t c = 0; c < chunk[2]; ++c) {
              for (int64_t d = 0; d < chunk[3]; ++d, ++at) {
                const int64_t place =
                    (((first[0] + a) * 3 + first[1] + b) * 4 + first[2] + c) * 5 + first[3] + d;
                decoded[at] = std::byte(place % 251);
              }
            }
          }
        }
        copy_row_of_chunk(array, row, number, decoded, got);
      }
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i], std::byte((row * got.size() + i) % 251)) << row << ' ' << i;
      }
    }
  }
}

TEST(ChunkedArray, descriptions_that_cannot_be_are_refused) {
  EXPECT_EQ(code_of_check(squares({5, 3}, {2, 2})), std::nullopt);
  EXPECT_EQ(code_of_check(squares({}, {})), Code::kInvalidArgument);
  EXPECT_EQ(code_of_check(squares({5, 3}, {2, 0})), Code::kInvalidArgument);
  EXPECT_EQ(code_of_check(squares({5, -3}, {2, 2})), Code::kInvalidArgument);
  ChunkedArray few = squares({5, 3}, {2, 2});
  few.chunks.pop_back();
  EXPECT_EQ(code_of_check(few), Code::kInvalidArgument);
  ChunkedArray axes = squares({5, 3}, {2});
  EXPECT_EQ(code_of_check(axes), Code::kInvalidArgument);
  ChunkedArray huge = squares({5, 3}, {2, int64_t{1} << 60});
  EXPECT_EQ(code_of_check(huge), Code::kInvalidArgument);
  ChunkedArray fill = squares({5, 3}, {2, 2});
  fill.fill.resize(3);
  EXPECT_EQ(code_of_check(fill), Code::kInvalidArgument);
  ChunkedArray whole = squares({5, 3}, {});
  whole.filters = {ChunkedArray::Filter::kDeflate};
  EXPECT_EQ(code_of_check(whole), Code::kInvalidArgument);
}

TEST(ChunkedArray, bytes_that_are_no_chunk_are_data_loss) {
  MemoryFiles files;
  files["x.h5"] = std::string(64, 'x');
  const auto file = files.open("x.h5");
  ChunkedArray array = squares({4, 4}, {2, 4});
  std::vector<std::byte> out(array.chunk_bytes());
  auto why = [&](uint64_t offset, uint64_t bytes, std::vector<ChunkedArray::Filter> filters) {
    array.filters = std::move(filters);
    array.chunks[1] = {offset, bytes, 0};
    try {
      ChunkDecoder(array).decode(*file, 1, out);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kDataLoss);
      return std::string(error.what());
    }
    return std::string("decoded");
  };
  using Filter = ChunkedArray::Filter;
  EXPECT_EQ(why(0, 8, {}), "decoded");
  EXPECT_NE(why(0, 7, {}).find("7 bytes of values, not 8"), std::string::npos);
  EXPECT_NE(why(0, 20000, {}).find("impossible"), std::string::npos);
  EXPECT_NE(why(60, 8, {}).find("x.h5"), std::string::npos);
  EXPECT_NE(why(0, 2, {Filter::kFletcher32}).find("too short"), std::string::npos);
  EXPECT_NE(why(0, 12, {Filter::kFletcher32}).find("does not match"), std::string::npos);
  EXPECT_NE(why(5, 12, {Filter::kDeflate}).find("x.h5: chunk 1 of '/X', at byte 5"),
            std::string::npos);
  // A filter that was skipped for this chunk.
  array.filters = {Filter::kDeflate};
  array.chunks[1] = {0, 8, 1};
  ChunkDecoder(array).decode(*file, 1, out);
  EXPECT_EQ(out[3], std::byte('x'));
}

}  // namespace
}  // namespace penstock
