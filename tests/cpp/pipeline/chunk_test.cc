#include "penstock/pipeline/element/chunk.h"

#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>

namespace penstock {
namespace {

SpecRef spec() {
  return std::make_shared<ElementSpec>(
      std::vector<Leaf>{{"label", LeafKind::kDense, DType::kInt32, {}},
                        {"pair", LeafKind::kDense, DType::kInt16, {2}},
                        {"text", LeafKind::kText, DType::kUint8, {-1}},
                        {"image", LeafKind::kDense, DType::kUint8, {-1, -1}}});
}

int32_t label(const Chunk& chunk, uint32_t row) {
  int32_t value;
  std::memcpy(&value, chunk.at(0, row), sizeof(value));
  return value;
}

TEST(Chunk, a_free_column_is_dense_or_views) {
  Scratch scratch;
  Chunk chunk(scratch);
  chunk.reset(spec(), 3);
  auto* labels = reinterpret_cast<int32_t*>(chunk.dense(0));
  for (int i = 0; i < 3; ++i) labels[i] = 10 + i;
  std::vector<int16_t> pairs = {1, 2, 3, 4, 5, 6};
  for (uint32_t i = 0; i < 3; ++i) {
    chunk.view(1, i, reinterpret_cast<std::byte*>(&pairs[2 * (2 - i)]));
  }
  EXPECT_EQ(label(chunk, 2), 12);
  EXPECT_EQ(chunk.at(1, 0), reinterpret_cast<std::byte*>(&pairs[4]));
  EXPECT_EQ(chunk.shape(1, 0).size(), 1u);
  EXPECT_EQ(chunk.shape(1, 0)[0], 2);
}

TEST(Chunk, variable_rows_have_shapes_of_their_own) {
  Scratch scratch;
  Chunk chunk(scratch);
  chunk.reset(spec(), 2);
  std::string text = "feeds";
  int64_t length = 5;
  chunk.view(2, 1, reinterpret_cast<const std::byte*>(text.data()), {&length, 1});
  int64_t dims[] = {2, 3};
  chunk.view(3, 0, reinterpret_cast<const std::byte*>(text.data()), dims);
  EXPECT_EQ(chunk.shape(2, 1)[0], 5);
  EXPECT_EQ(std::memcmp(chunk.at(2, 1), "feeds", 5), 0);
  EXPECT_EQ(chunk.shape(3, 0)[1], 3);
}

TEST(Chunk, a_bound_column_is_written_where_it_is_wanted) {
  Scratch scratch;
  Chunk chunk(scratch);
  struct {
    int32_t label;
    int16_t pair[2];
    int32_t other;
  } batch[2] = {};
  chunk.reset(spec(), 2);
  chunk.bind(0, reinterpret_cast<std::byte*>(&batch[0].label), sizeof(batch[0]));
  chunk.bind(1, reinterpret_cast<std::byte*>(&batch[0].pair), sizeof(batch[0]));
  EXPECT_TRUE(chunk.bound(0));
  std::byte* labels = chunk.dense(0);
  for (int i = 0; i < 2; ++i) {
    int32_t value = 7 + i;
    std::memcpy(labels + i * chunk.stride(0), &value, sizeof(value));
    int16_t pair[] = {static_cast<int16_t>(i), 3};
    chunk.view(1, i, reinterpret_cast<std::byte*>(pair));
  }
  EXPECT_EQ(batch[1].label, 8);
  EXPECT_EQ(batch[1].pair[0], 1);
  EXPECT_EQ(batch[0].pair[1], 3);
  EXPECT_EQ(batch[0].other, 0);
  EXPECT_EQ(chunk.at(1, 1), reinterpret_cast<std::byte*>(&batch[1].pair));
  EXPECT_EQ(scratch.bytes(), 0u) << "nothing was made on the way";
}

TEST(Chunk, the_first_element_may_tell_the_spec) {
  Scratch scratch;
  Chunk chunk(scratch);
  chunk.reset(nullptr, 2);
  EXPECT_EQ(chunk.spec(), nullptr);
  EXPECT_TRUE(chunk.settle(spec()));
  EXPECT_TRUE(chunk.settle(spec())) << "an equal one";
  auto other = std::make_shared<ElementSpec>(
      std::vector<Leaf>{{"label", LeafKind::kDense, DType::kInt64, {}}});
  EXPECT_FALSE(chunk.settle(other));
}

TEST(Chunk, elements_that_tell_other_lengths_leave_the_first_ones_as_they_are) {
  auto of = [](int64_t length) {
    return std::make_shared<ElementSpec>(
        std::vector<Leaf>{{"x", LeafKind::kDense, DType::kUint8, {length, 2}}});
  };
  Scratch scratch;
  Chunk chunk(scratch);
  chunk.reset(nullptr, 2);
  ASSERT_TRUE(chunk.settle(of(1)));
  std::memcpy(chunk.dense(0), "ab", 2);
  ASSERT_TRUE(chunk.settle(of(3)));
  EXPECT_EQ(chunk.spec()->leaves()[0].shape, (Shape{-1, 2}));
  const char* second = "cdefgh";
  chunk.view(0, 1, reinterpret_cast<const std::byte*>(second), Shape{3, 2});
  EXPECT_EQ(std::memcmp(chunk.at(0, 0), "ab", 2), 0);
  EXPECT_EQ(chunk.shape(0, 0)[0], 1);
  EXPECT_EQ(chunk.shape(0, 1)[0], 3);
  EXPECT_EQ(std::memcmp(chunk.at(0, 1), second, 6), 0);

  chunk.reset(of(1), 2);
  EXPECT_FALSE(chunk.settle(of(3))) << "a spec that was given is not the elements' to change";
}

TEST(Chunk, rows_fail_one_by_one_and_for_their_first_reason) {
  Scratch scratch;
  Chunk chunk(scratch);
  chunk.reset(spec(), Chunk::kRows);
  EXPECT_EQ(chunk.alive(), ~uint64_t{0});
  auto error = std::make_exception_ptr(std::runtime_error("no"));
  chunk.fail(63, {"map(f)", 5, error});
  chunk.fail(63, {"map(g)", 6, error});
  EXPECT_EQ(chunk.alive(), ~uint64_t{0} >> 1);
  ASSERT_EQ(chunk.failures().size(), 1u);
  EXPECT_EQ(chunk.failures()[0].second.stage, "map(f)");
  chunk.reset(spec(), 1);
  EXPECT_EQ(chunk.alive(), 1u);
  EXPECT_TRUE(chunk.failures().empty());
}

TEST(Chunk, rows_that_are_removed_leave_no_gap) {
  Scratch scratch;
  Chunk chunk(scratch);
  chunk.reset(spec(), 5);
  auto* labels = reinterpret_cast<int32_t*>(chunk.dense(0));
  const std::string text = "abcde";
  const auto file = std::make_shared<const std::string>("file");
  for (int64_t i = 0; i < 5; ++i) {
    labels[i] = static_cast<int32_t>(10 + i);
    const int64_t dims[] = {1, i};
    chunk.view(3, static_cast<uint32_t>(i), reinterpret_cast<const std::byte*>(&text[i]), dims);
    if (i != 3) chunk.set_origin(static_cast<uint32_t>(i), file, static_cast<uint64_t>(i));
  }
  auto error = std::make_exception_ptr(std::runtime_error("no"));
  chunk.fail(0, {"map(f)", 0, error});
  chunk.fail(4, {"map(f)", 4, error});
  chunk.note(1, {"map(g)", 1, error});
  chunk.note(3, {"map(g)", 3, error});
  chunk.remove(0b00101);
  ASSERT_EQ(chunk.rows(), 3U);
  EXPECT_EQ(chunk.alive(), 0b011U);
  EXPECT_EQ(label(chunk, 0), 11);
  EXPECT_EQ(label(chunk, 1), 13);
  EXPECT_EQ(static_cast<char>(*chunk.at(3, 1)), 'd');
  EXPECT_EQ(chunk.shape(3, 1)[1], 3);
  ASSERT_EQ(chunk.failures().size(), 1U);
  EXPECT_EQ(chunk.failures()[0].first, 2U);
  ASSERT_EQ(chunk.notes().size(), 2U);
  EXPECT_EQ(chunk.notes()[0].first, 0U);
  EXPECT_EQ(chunk.notes()[1].first, 1U);
  EXPECT_EQ(chunk.origin(0).text(), "file, record 1");
  EXPECT_EQ(chunk.origin(1).text(), "");
  EXPECT_EQ(chunk.origin(2).text(), "file, record 4");
  chunk.remove(0b111);
  EXPECT_EQ(chunk.rows(), 0U);
}

TEST(Chunk, a_row_that_is_dropped_leaves_what_was_lost_on_the_way_to_it) {
  Scratch scratch;
  Chunk chunk(scratch);
  chunk.reset(spec(), 2);
  EXPECT_FALSE(chunk.drop_row(0));
  EXPECT_EQ(chunk.alive(), 0b11U);
  auto error = std::make_exception_ptr(std::runtime_error("no"));
  chunk.note(1, {"map(f)", 5, error});
  chunk.note(1, {"map(f)", 6, error});
  EXPECT_TRUE(chunk.drop_row(1));
  EXPECT_EQ(chunk.alive(), 0b01U);
  EXPECT_FALSE(chunk.left_out(0));
  EXPECT_TRUE(chunk.left_out(1));
  EXPECT_EQ(chunk.failures()[0].second.position, 5U);
  EXPECT_EQ(chunk.take_notes(1).size(), 1U);
}

TEST(Chunk, keeps_what_views_point_into_until_the_next_reset) {
  Scratch scratch;
  Chunk chunk(scratch);
  auto owner = std::make_shared<int>(3);
  chunk.reset(spec(), 1);
  chunk.keep(owner);
  EXPECT_EQ(owner.use_count(), 2);
  chunk.reset(spec(), 1);
  EXPECT_EQ(owner.use_count(), 1);
}

}  // namespace
}  // namespace penstock
