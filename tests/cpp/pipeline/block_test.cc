#include "penstock/pipeline/element/block.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "penstock/base/error.h"

namespace penstock {
namespace {

SpecRef spec_of_all_kinds() {
  return std::make_shared<ElementSpec>(
      std::vector<Leaf>{{"text", LeafKind::kText, DType::kUint8, {-1}},
                        {"label", LeafKind::kDense, DType::kInt64, {}},
                        {"boxes", LeafKind::kRagged, DType::kFloat32, {-1, 4}},
                        {"pair", LeafKind::kDense, DType::kInt16, {2}},
                        {"image", LeafKind::kDense, DType::kUint8, {-1, -1, 3}},
                        {"nothing", LeafKind::kRagged, DType::kInt32, {-1, 0}}});
}

Tensor tensor(DType dtype, Shape shape, std::minstd_rand& draw) {
  Tensor made = Tensor::make(dtype, std::move(shape));
  for (size_t i = 0; i < made.nbytes(); ++i) made.data()[i] = static_cast<std::byte>(draw());
  return made;
}

std::vector<Example> elements(uint64_t count, std::minstd_rand& draw) {
  std::vector<Example> made;
  for (uint64_t i = 0; i < count; ++i) {
    auto length = [&] { return static_cast<int64_t>(draw() % 5); };
    made.push_back({{"text", tensor(DType::kUint8, {length()}, draw)},
                    {"label", tensor(DType::kInt64, {}, draw)},
                    {"boxes", tensor(DType::kFloat32, {length(), 4}, draw)},
                    {"pair", tensor(DType::kInt16, {2}, draw)},
                    {"image", tensor(DType::kUint8, {length(), length(), 3}, draw)},
                    {"nothing", tensor(DType::kInt32, {length(), 0}, draw)}});
  }
  return made;
}

// A block in its own memory, written by a simple implementation.
struct Written {
  std::shared_ptr<std::vector<uint64_t>> memory;
  uint64_t bytes = 0;
  std::byte* data() const { return reinterpret_cast<std::byte*>(memory->data()); }
};

Written write(const ElementSpec& spec, const std::vector<Example>& elements) {
  std::vector<uint64_t> sizes;
  for (const Leaf& leaf : spec.leaves()) {
    if (leaf.fixed()) continue;
    uint64_t size = 0;
    for (const Example& element : elements) size += element.at(leaf.name).nbytes();
    sizes.push_back(size);
  }
  BlockLayout layout(spec, elements.size(), sizes);
  Written out{std::make_shared<std::vector<uint64_t>>(layout.bytes() / 8), layout.bytes()};
  for (size_t i = 0; i < spec.leaves().size(); ++i) {
    const Leaf& leaf = spec.leaves()[i];
    int64_t at = 0;
    uint64_t bytes = 0;
    for (size_t row = 0; row < elements.size(); ++row) {
      const Tensor& value = elements[row].at(leaf.name);
      if (leaf.fixed()) {
        std::memcpy(layout.fixed().row(out.data(), layout.fixed_place(i), row), value.data(),
                    value.nbytes());
        continue;
      }
      std::memcpy(out.data() + layout.values(i) + bytes, value.data(), value.nbytes());
      bytes += value.nbytes();
      at += leaf.deep() ? value.size() : value.dim(0);
      std::memcpy(out.data() + layout.offsets(i) + (row + 1) * 8, &at, 8);
      if (!leaf.deep()) continue;
      size_t axes = value.ndim();
      std::memcpy(out.data() + layout.dims(i) + row * axes * 8, value.shape().data(), axes * 8);
    }
  }
  return out;
}

void expect_rows(const Block& block, const std::vector<Example>& elements, uint64_t first) {
  for (uint64_t row = 0; row < block.rows(); ++row) {
    Example got = block.row(row);
    ASSERT_EQ(got.size(), elements[first + row].size());
    for (const auto& [name, value] : elements[first + row]) {
      EXPECT_TRUE(bit_equal(got.at(name).contiguous(), value)) << name << " of row " << row;
    }
  }
}

TEST(Block, rows_are_what_was_written) {
  std::minstd_rand draw(1);
  SpecRef spec = spec_of_all_kinds();
  for (uint64_t count : {0, 1, 2, 17, 64}) {
    auto made = elements(count, draw);
    Written written = write(*spec, made);
    Block block(spec, count, written.data(), written.bytes, written.memory);
    EXPECT_EQ(block.rows(), count);
    expect_rows(block, made, 0);
    for (uint64_t begin = 0; begin <= count; begin += 3) {
      Block some = block.rows(begin, count).rows(0, (count - begin) / 2);
      expect_rows(some, made, begin);
    }
  }
}

TEST(Block, a_batch_is_columns_offsets_and_shapes) {
  std::minstd_rand draw(2);
  SpecRef spec = spec_of_all_kinds();
  auto made = elements(9, draw);
  Written written = write(*spec, made);
  Block all(spec, 9, written.data(), written.bytes, written.memory);
  for (uint64_t begin : {0, 4}) {
    Block block = all.rows(begin, 9);
    Example batch = block.batch();
    auto rows = static_cast<int64_t>(9 - begin);
    EXPECT_EQ(batch.at("pair").shape(), (Shape{rows, 2}));
    EXPECT_EQ(batch.at("image/dims").shape(), (Shape{rows, 3}));
    auto offsets = batch.at("boxes/offsets").as_span<const int64_t>();
    ASSERT_EQ(offsets.size(), static_cast<size_t>(rows) + 1);
    EXPECT_EQ(offsets[0], 0);
    EXPECT_EQ(batch.at("boxes").shape(), (Shape{offsets.back(), 4}));
    for (int64_t row = 0; row < rows; ++row) {
      EXPECT_TRUE(bit_equal(batch.at("boxes").rows(offsets[row], offsets[row + 1]),
                            made[begin + row].at("boxes")));
    }
  }
}

TEST(Block, keeps_its_memory) {
  std::minstd_rand draw(3);
  SpecRef spec = spec_of_all_kinds();
  auto made = elements(3, draw);
  Written written = write(*spec, made);
  std::weak_ptr<void> memory = written.memory;
  Tensor kept;
  {
    Block block(spec, 3, written.data(), written.bytes, written.memory);
    written.memory.reset();
    kept = block.rows(1, 2).row(0).at("boxes");
  }
  EXPECT_TRUE(bit_equal(kept, made[1].at("boxes")));
  EXPECT_FALSE(memory.expired());
  kept = Tensor();
  EXPECT_TRUE(memory.expired());
}

TEST(Block, rows_that_are_not_there_are_an_error) {
  std::minstd_rand draw(4);
  SpecRef spec = spec_of_all_kinds();
  Written written = write(*spec, elements(3, draw));
  Block block(spec, 3, written.data(), written.bytes, written.memory);
  EXPECT_THROW(block.row(3), Error);
  EXPECT_THROW(block.rows(2, 4), Error);
  EXPECT_THROW(block.rows(2, 1), Error);
  EXPECT_THROW(block.rows(1, 2).row(1), Error);
}

// Truncated at any size, or with any byte of the offsets and shapes changed: the same rows, or
// DataLoss.
TEST(Block, bytes_that_are_no_block_are_data_loss) {
  std::minstd_rand draw(5);
  SpecRef spec = spec_of_all_kinds();
  Written written = write(*spec, elements(6, draw));
  auto read = [&](std::byte* data, uint64_t bytes, uint64_t rows) {
    try {
      Block block(spec, rows, data, bytes, nullptr);
      for (uint64_t row = 0; row < block.rows(); ++row) {
        for (const auto& [name, value] : block.row(row)) {
          EXPECT_GE(value.data(), data) << name;
          EXPECT_LE(value.data() + value.nbytes(), data + bytes) << name;
        }
      }
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kDataLoss) << error.what();
      return false;
    }
  };
  for (uint64_t bytes = 0; bytes < written.bytes; ++bytes) {
    EXPECT_FALSE(read(written.data(), bytes, 6));
  }
  EXPECT_FALSE(read(written.data(), written.bytes, uint64_t{1} << 60));
  uint64_t known = BlockLayout(*spec, 6).known_bytes();
  for (int i = 0; i < 20000; ++i) {
    auto copy = *written.memory;
    auto* data = reinterpret_cast<std::byte*>(copy.data());
    data[draw() % known] = static_cast<std::byte>(draw());
    read(data, written.bytes, 6);
  }
}

TEST(BlockLayout, sizes_that_cannot_be_are_errors) {
  SpecRef spec = spec_of_all_kinds();
  EXPECT_THROW(BlockLayout(*spec, uint64_t{1} << 60), Error);
  EXPECT_THROW(BlockLayout(*spec, 1, std::vector<uint64_t>{0, 15, 0, 0}), Error)
      << "boxes: 16 each";
  EXPECT_THROW(BlockLayout(*spec, 1, std::vector<uint64_t>{UINT64_MAX, 0, 0, 0}), Error);
  EXPECT_THROW(BlockLayout(*spec, 1, std::vector<uint64_t>{0, 0, 0, 4}), Error);
}

}  // namespace
}  // namespace penstock
