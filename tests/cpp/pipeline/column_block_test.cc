#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "numbers.h"
#include "ops.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/element/block.h"

namespace penstock {
namespace {

using test::Numbers;
using test::numbers_of;

// Rows "a", "bcd", "".
std::vector<std::byte> three_texts() {
  const ElementSpec spec({{"t", LeafKind::kText, DType::kUint8, {-1}}});
  const uint64_t values = 4;
  const BlockLayout layout(spec, 3, {&values, 1});
  std::vector<std::byte> bytes(ColumnBlock::bytes_of(spec, layout));
  std::byte* block = ColumnBlock::begin(spec, layout, bytes.data());
  const int64_t offsets[] = {0, 1, 4, 4};
  std::memcpy(block + layout.offsets(0), offsets, sizeof(offsets));
  std::memcpy(block + layout.values(0), "abcd", 4);
  return bytes;
}

TEST(ColumnBlock, what_was_written_is_read) {
  const std::vector<std::byte> bytes = three_texts();
  EXPECT_EQ(bytes.size() % 64, 0u);
  // At any alignment; the copy is its own.
  for (size_t shift : {0, 1, 4, 8}) {
    std::vector<std::byte> moved(bytes.size() + shift);
    std::memcpy(moved.data() + shift, bytes.data(), bytes.size());
    const Block block = ColumnBlock::read(moved.data() + shift, bytes.size(), nullptr);
    moved.assign(moved.size(), std::byte{0});
    ASSERT_EQ(block.rows(), 3u);
    const Example batch = block.batch();
    EXPECT_EQ(numbers_of(batch, "t/offsets"), (Numbers{0, 1, 4, 4}));
    EXPECT_EQ(block.row(1).at("t").shape(), (Shape{3}));
  }
}

TEST(ColumnBlock, damaged_bytes_are_refused) {
  const std::vector<std::byte> whole = three_texts();
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_THROW(ColumnBlock::read(whole.data(), bytes, nullptr), Error);
  }
  size_t refused = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (auto changed : {std::byte{0xff}, std::byte{0x80}, std::byte{1}}) {
      std::vector<std::byte> bytes = whole;
      bytes[at] ^= changed;
      try {
        const Block block = ColumnBlock::read(bytes.data(), bytes.size(), nullptr);
        for (uint64_t row = 0; row < block.rows(); ++row) (void)block.row(row);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kDataLoss);
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 50u);
}

TEST(ColumnBlock, a_function_sees_a_column_as_whoever_is_fed_does) {
  const Dataset batches = Dataset::range(8, 12).map(std::make_shared<test::TextOp>()).batch(3);
  auto look = [](const Example& batch, SampleContext&) {
    Tensor last = Tensor::make(DType::kInt64, {});
    last.as_span<int64_t>()[0] = batch.at("text/offsets").as_span<const int64_t>().back();
    return Example{{"bytes", last}, {"number", batch.at("number").copy()}};
  };
  for (uint32_t workers : {0, 2}) {
    Loader feed = batches.map(look, "look").build({.workers = workers});
    auto first = feed.next();
    ASSERT_TRUE(first);
    EXPECT_EQ(numbers_of(*first, "bytes"), (Numbers{4}));
    EXPECT_EQ(numbers_of(*first, "number"), (Numbers{8, 9, 10}));
    EXPECT_EQ(numbers_of(*feed.next(), "bytes"), (Numbers{2}));

    Loader rows = batches.unbatch().build({.workers = workers});
    Numbers numbers;
    for (auto& row : rows.epoch()) {
      auto text = row.at("text").as_span<const uint8_t>();
      numbers.push_back(std::stoll(std::string(text.begin(), text.end())));
      EXPECT_EQ(numbers.back(), numbers_of(row, "number")[0]);
    }
    EXPECT_EQ(numbers, (Numbers{8, 9, 10, 11}));

    Loader passed = batches.filter([](const Example&, SampleContext&) { return true; }, "all")
                        .build({.workers = workers});
    auto batch = passed.next();
    ASSERT_TRUE(batch);
    EXPECT_EQ(numbers_of(*batch, "text/offsets"), (Numbers{0, 1, 2, 4}));
  }
}

}  // namespace
}  // namespace penstock
