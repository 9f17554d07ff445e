// Elements of Arrow data: views of its buffers; a damaged row is lost alone.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "../../io/arrow_arrays.h"
#include "../stages/reading.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/sources/sources.h"

namespace penstock {
namespace {

using testing::ArrowColumnData;
using testing::ArrowMaker;
using testing::numbers_column;
using testing::raw_bytes;
using testing::Reading;
using testing::strings_column;
using testing::struct_of;

struct ArrowSource : ::testing::Test {
  ~ArrowSource() override { EXPECT_EQ(maker.arrays + maker.schemas + maker.streams, 0); }
  std::shared_ptr<const ArrowTable> table(std::vector<ArrowColumnData> chunks) {
    ArrowArrayStream stream = maker.stream(std::move(chunks));
    return std::make_shared<const ArrowTable>(import_arrow(&stream));
  }
  // Why the rows of a reading were lost; "": they were not.
  static std::vector<std::string> losses(Reading& reading, uint64_t rows) {
    std::vector<std::string> lost(rows);
    for (uint64_t row = 0; row < rows; ++row) {
      reading.at({}, {row});
      for (const auto& failure : reading.failures()) {
        try {
          std::rethrow_exception(failure.second.error);
        } catch (const Error& error) {
          lost[row] = std::string(name_of(error.code())) + " " + error.what();
        }
      }
    }
    return lost;
  }
  ArrowMaker maker;
};

TEST_F(ArrowSource, rows_are_views_of_the_buffers) {
  ArrowColumnData fixed = {"+w:2", "f", {""}, 2, 1, 0, {}};
  fixed.children.push_back(numbers_column<float>("f", "item", {9, 0, 1, 2, 3, 4, 5}));
  fixed.children[0].offset = 1;
  fixed.children[0].length = 6;
  ArrowColumnData strings = strings_column("s", {0, 1, 3}, "abc");
  ArrowColumnData chunk = struct_of({fixed, strings});
  auto data = table({chunk});
  Reading reading(nodes::arrow(data));
  EXPECT_EQ(reading.stage().spec()->to_string(), "{f: float32 (2,), s: text}");
  Scratch scratch;
  Context context{scratch};
  auto reader = reading.stage().reader(context);
  Chunk out(scratch);
  out.reset(reading.stage().spec(), 2);
  reader->fetch({}, std::vector<uint64_t>{1, 0}, out, 0);
  const ArrowColumn& items = data->chunks[0].children[0].children[0];
  // Row 0 is list 1 of an array of lists that begins at item 1 of its values.
  EXPECT_EQ(out.at(0, 1), items.buffers[1].data + 3 * sizeof(float));
  EXPECT_EQ(out.at(0, 0), items.buffers[1].data + 5 * sizeof(float));
  EXPECT_EQ(out.at(1, 0), data->chunks[0].children[1].buffers[2].data + 1);
  EXPECT_EQ(out.shape(1, 0)[0], 2);
  EXPECT_EQ(scratch.bytes(), 0u);
}

TEST_F(ArrowSource, a_wrong_offset_costs_its_row) {
  Reading reading(nodes::arrow(table({struct_of({strings_column("s", {0, 2, 1, 3}, "abc")})})));
  const auto lost = losses(reading, 3);
  EXPECT_EQ(lost[0], "");
  EXPECT_EQ(lost[1], "DataLoss arrow: 's', row 1 has offsets 2 and 1 into 3 bytes");
  EXPECT_EQ(lost[2], "");
  ArrowColumnData list = {"+l", "l", {"", raw_bytes<int32_t>({0, 900, 1, 3})}, 3};
  list.children.push_back(numbers_column<int8_t>("c", "item", {1, 2, 3}));
  Reading lists(nodes::arrow(table({struct_of({list})})));
  const auto wrong = losses(lists, 3);
  EXPECT_EQ(wrong[0], "DataLoss arrow: 'l', row 0 has offsets 0 and 900 into 3 items");
  EXPECT_NE(wrong[1], "");
  EXPECT_EQ(wrong[2], "");
}

TEST_F(ArrowSource, a_wrong_index_or_view_costs_its_row) {
  ArrowColumnData coded = numbers_column<int8_t>("c", "d", {0, -1, 2, 1});
  coded.dictionary.push_back(strings_column("", {0, 1, 2}, "ab"));
  std::string views(64, '\0');
  const std::vector<int32_t> entries = {3, 0x636261, 0, 0, 13, 0, 0, 2, 13, 0, 1, 0, -5, 0, 0, 0};
  std::memcpy(views.data(), entries.data(), 64);
  ArrowColumnData viewed = {"vz", "v", {"", views, "0123456789abcde", raw_bytes<int64_t>({15})}, 4};
  Reading reading(nodes::arrow(table({struct_of({coded})})));
  const auto lost = losses(reading, 4);
  EXPECT_EQ(lost[0] + lost[3], "");
  EXPECT_EQ(lost[1], "DataLoss arrow: 'd', row 1 has index -1 into a dictionary of 2 values");
  EXPECT_NE(lost[2], "");
  Reading views_of(nodes::arrow(table({struct_of({viewed})})));
  const auto wrong = losses(views_of, 4);
  EXPECT_EQ(wrong[0] + wrong[1], "");
  EXPECT_NE(wrong[2], "");
  EXPECT_NE(wrong[3], "");
}

TEST_F(ArrowSource, text_that_is_not_utf8_costs_its_row) {
  Reading reading(nodes::arrow(table({struct_of({strings_column("s", {0, 1, 2}, "a\xff")})})));
  const auto lost = losses(reading, 2);
  EXPECT_EQ(lost[0], "");
  EXPECT_EQ(lost[1], "DataLoss arrow: 's', row 1 is not UTF-8");
}

TEST_F(ArrowSource, batches_of_any_order_over_several_chunks) {
  std::vector<ArrowColumnData> chunks;
  for (int32_t begin : {0, 3, 10}) {
    std::vector<int32_t> values;
    for (int32_t i = begin; i < (begin == 0 ? 3 : begin == 3 ? 10 : 40); ++i) values.push_back(i);
    chunks.push_back(struct_of({numbers_column<int32_t>("i", "x", values)}));
  }
  for (uint32_t workers : {0u, 2u}) {
    ArrowArrayStream stream = maker.stream(chunks);
    Loader feed = Dataset::arrow(&stream).shuffle({.seed = 1}).batch(7).build({.workers = workers});
    std::vector<int32_t> seen;
    for (auto& batch : feed.epoch()) {
      for (int32_t value : batch.at("x").as_span<const int32_t>()) seen.push_back(value);
    }
    EXPECT_FALSE(std::ranges::is_sorted(seen));
    std::ranges::sort(seen);
    ASSERT_EQ(seen.size(), 40u);
    for (int32_t i = 0; i < 40; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i);
  }
}

TEST_F(ArrowSource, rows_may_be_chosen_and_nulls_filled) {
  ArrowColumnData column = numbers_column<int64_t>("l", "x", {1, 2, 3});
  column.buffers[0] = "\x05";
  column.nulls = 1;
  const auto data = table({struct_of({column})});
  ArrowOptions options;
  options.rows = testing::tensor<int64_t>({4}, {2, 1, 1, 0});
  options.fills = {{"x", testing::tensor<int64_t>({}, {-7})}};
  Reading reading(nodes::arrow(data, options));
  EXPECT_EQ(testing::numbers(reading.epoch(), "x"), (std::vector<int64_t>{3, -7, -7, 1}));
  options.fills = {{"x", testing::tensor<int32_t>({}, {-7})}};
  EXPECT_THROW(nodes::arrow(data, options), Error);
  options.fills = {{"y", testing::tensor<int64_t>({}, {-7})}};
  EXPECT_THROW(nodes::arrow(data, options), Error);
  options.fills = {};
  options.rows = testing::tensor<int64_t>({1}, {3});
  EXPECT_THROW(nodes::arrow(data, options), Error);
  Reading unfilled(nodes::arrow(data));
  EXPECT_NE(losses(unfilled, 3)[1].find("InvalidArgument arrow: 'x', row 1 is null"),
            std::string::npos);
}

TEST_F(ArrowSource, other_types_are_refused_before_data_is_read) {
  ArrowArrayStream stream = maker.stream({struct_of({{"d:10,2", "price", {}, 0}})}, 0);
  try {
    Dataset::arrow(&stream);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("'price' is decimal"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace penstock
