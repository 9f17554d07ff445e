// Arrow data of another library: what its structs say is checked, and each is released once.
#include "penstock/io/arrow.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "arrow_arrays.h"
#include "penstock/base/error.h"

namespace penstock {
namespace {

using testing::ArrowColumnData;
using testing::ArrowMaker;
using testing::numbers_column;
using testing::raw_bytes;
using testing::strings_column;
using testing::struct_of;

struct ArrowImport : ::testing::Test {
  ~ArrowImport() override {
    EXPECT_EQ(maker.arrays, 0);
    EXPECT_EQ(maker.schemas, 0);
    EXPECT_EQ(maker.streams, 0);
  }
  ArrowTable read(std::vector<ArrowColumnData> chunks, std::vector<std::string> columns = {}) {
    ArrowArrayStream stream = maker.stream(std::move(chunks));
    ArrowTable table = import_arrow(&stream, columns);
    EXPECT_EQ(stream.release, nullptr);
    return table;
  }
  // The error of a table with this column.
  std::string wrong(ArrowColumnData column, Code code = Code::kDataLoss) {
    const int64_t length = column.length;
    ArrowColumnData chunk = struct_of({std::move(column)});
    chunk.length = std::max<int64_t>(length, 0);
    return failure([&] { read({chunk}); }, code);
  }
  static std::string failure(const std::function<void()>& run, Code code) {
    try {
      run();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return {};
  }
  static void expect_in(const std::string& what, const std::string& part) {
    EXPECT_NE(what.find(part), std::string::npos) << what;
  }
  ArrowMaker maker;
};

const ArrowColumnData kNumbers = numbers_column<int32_t>("i", "x", {1, 2, 3});
const ArrowColumnData kStrings = strings_column("s", {0, 1, 3, 3}, "abc");

TEST_F(ArrowImport, keeps_the_arrays_until_the_table_ends) {
  {
    ArrowTable table = read({struct_of({kNumbers, kStrings}), struct_of({kNumbers, kStrings})});
    EXPECT_EQ(table.rows(), 6u);
    EXPECT_EQ(table.chunks.size(), 2u);
    EXPECT_EQ(maker.arrays, 6);
    EXPECT_EQ(maker.schemas, 0);
    EXPECT_EQ(table.chunks[1].children[0].buffers[1].bytes, 12u);
    EXPECT_EQ(table.chunks[1].children[1].buffers[2].bytes, 3u);
  }
  EXPECT_EQ(maker.arrays, 0);
}

TEST_F(ArrowImport, takes_one_array_too) {
  ArrowSchema schema = maker.schema(kStrings);
  ArrowArray array = maker.array(kStrings);
  ArrowTable table = import_arrow(&schema, &array);
  EXPECT_EQ(schema.release, nullptr);
  EXPECT_EQ(array.release, nullptr);
  EXPECT_FALSE(table.is_struct());
  EXPECT_EQ(table.rows(), 3u);
}

TEST_F(ArrowImport, refuses_what_was_released) {
  ArrowArrayStream stream{};
  expect_in(failure([&] { import_arrow(&stream); }, Code::kInvalidArgument), "read already");
  ArrowSchema schema = maker.schema(kNumbers);
  ArrowArray array{};
  expect_in(failure([&] { import_arrow(&schema, &array); }, Code::kInvalidArgument),
            "read already");
}

TEST_F(ArrowImport, a_stream_that_fails_half_way_is_quoted) {
  ArrowArrayStream stream =
      maker.stream({struct_of({kNumbers}), struct_of({kNumbers}), struct_of({kNumbers})}, 2);
  const std::string what = failure([&] { import_arrow(&stream); }, Code::kDataLoss);
  expect_in(what, "after 2 batches");
  expect_in(what, "the disk is gone");
}

TEST_F(ArrowImport, refusal_of_the_schema_reads_no_data) {
  ArrowArrayStream stream = maker.stream({struct_of({kNumbers})});
  bool seen = false;
  EXPECT_THROW(import_arrow(&stream, {},
                            [&](const ArrowField& schema) {
                              seen = true;
                              EXPECT_EQ(schema.children.at(0).name, "x");
                              EXPECT_EQ(maker.arrays, 0);
                              throw Error(Code::kInvalidArgument, "test", "refused");
                            }),
               Error);
  EXPECT_TRUE(seen);
}

TEST_F(ArrowImport, columns_are_chosen_in_order) {
  ArrowColumnData inner = struct_of({kNumbers, kStrings});
  inner.name = "in";
  ArrowTable table = read({struct_of({kNumbers, inner, kStrings})}, {"s", "in/s", "x", "in/x"});
  ASSERT_EQ(table.schema.children.size(), 3u);
  EXPECT_EQ(table.schema.children[0].name, "s");
  EXPECT_EQ(table.schema.children[1].name, "in");
  EXPECT_EQ(table.schema.children[1].children[0].name, "s");
  EXPECT_EQ(table.schema.children[1].children[1].name, "x");
  EXPECT_EQ(table.schema.children[2].name, "x");
  EXPECT_EQ(table.chunks[0].children[0].buffers.size(), 3u);
  EXPECT_EQ(table.chunks[0].children[2].buffers.size(), 2u);
  expect_in(failure([&] { read({struct_of({kNumbers})}, {"y"}); }, Code::kInvalidArgument), "'x'");
}

TEST_F(ArrowImport, unread_columns_may_have_any_type) {
  ArrowColumnData odd = {"d:10,2", "odd", {}, 3};
  EXPECT_EQ(read({struct_of({kNumbers, odd})}, {"x"}).schema.children.size(), 1u);
}

TEST_F(ArrowImport, nulls_are_counted) {
  ArrowColumnData column = numbers_column<uint8_t>("C", "x", std::vector<uint8_t>(200));
  column.buffers[0] = std::string(25, '\x0f');
  column.offset = 3;
  column.length = 190;
  column.nulls = -1;
  ArrowColumnData chunk = struct_of({column});
  chunk.length = 190;
  int64_t nulls = 0;
  for (int64_t i = 3; i < 193; ++i) nulls += i % 8 >= 4;
  EXPECT_EQ(read({chunk}).chunks[0].children[0].nulls, nulls);
  column.buffers[0].clear();
  chunk = struct_of({column});
  EXPECT_EQ(read({chunk}).chunks[0].children[0].nulls, 0);
}

TEST_F(ArrowImport, lies_about_lengths_are_found) {
  auto with = [](ArrowColumnData column, const std::function<void(ArrowColumnData&)>& change) {
    change(column);
    return column;
  };
  expect_in(wrong(with(kNumbers, [](auto& c) { c.length = -1; })), "length of -1");
  expect_in(wrong(with(kNumbers, [](auto& c) { c.offset = -1; })), "offset of -1");
  expect_in(wrong(with(kNumbers, [](auto& c) { c.length = INT64_MAX; })), "length");
  expect_in(wrong(with(kNumbers, [](auto& c) { c.nulls = 4; })), "4 nulls among 3");
  expect_in(wrong(with(kNumbers, [](auto& c) { c.nulls = 1; })), "no bits");
  expect_in(wrong(with(kNumbers, [](auto& c) { c.buffers.pop_back(); })), "1 buffers");
  expect_in(wrong(with(kNumbers, [](auto& c) { c.buffers[1].clear(); })), "no buffer 1");
  expect_in(wrong(with(kStrings, [](auto& c) { c.buffers[2].clear(); })), "no buffer 2");
  expect_in(wrong(strings_column("s", {-1, 1}, "abc")), "offsets from -1 to 1");
  expect_in(wrong(strings_column("s", {2, 1}, "abc")), "offsets from 2 to 1");
  ArrowColumnData list = {"+l", "l", {"", raw_bytes<int32_t>({0, 4})}, 1, 0, 0, {kNumbers}};
  expect_in(wrong(list), "child of 3 items, and needs 4");
  ArrowColumnData fixed = {"+w:2", "f", {""}, 2, 0, 0, {kNumbers}};
  expect_in(wrong(fixed), "child of 3 items, and needs 4");
  fixed.format = "+w:9223372036854775807";
  expect_in(wrong(fixed, Code::kInvalidArgument), "no format");
  ArrowColumnData views = {"vu", "v", {"", std::string(16, '\0'), raw_bytes<int64_t>({-1})}, 1};
  views.buffers.insert(views.buffers.begin() + 2, "x");
  expect_in(wrong(views), "-1 bytes");
  ArrowColumnData parts = struct_of({kNumbers});
  parts.length = 4;
  expect_in(failure([&] { read({parts}); }, Code::kDataLoss), "child of 3 items, and needs 4");
}

TEST_F(ArrowImport, a_chunk_without_a_column_of_the_schema_is_lost) {
  ArrowSchema schema = maker.schema(struct_of({kNumbers, kStrings}));
  ArrowArray array = maker.array(struct_of({kNumbers}));
  expect_in(failure([&] { import_arrow(&schema, &array); }, Code::kDataLoss), "'s'");
  schema = maker.schema({"i", "x", {}, 0, 0, 0, {}, {kStrings}});
  array = maker.array(kNumbers);
  expect_in(failure([&] { import_arrow(&schema, &array); }, Code::kDataLoss), "no dictionary");
}

TEST_F(ArrowImport, deep_types_are_refused) {
  ArrowColumnData deep = kNumbers;
  for (int i = 0; i < 100; ++i) {
    deep = struct_of({deep});
    deep.name = "x";
  }
  expect_in(failure([&] { read({deep}); }, Code::kInvalidArgument), "too deeply");
}

TEST(ArrowTypes, have_a_dtype_or_a_remedy) {
  EXPECT_EQ(arrow_type("tdD").dtype, DType::kInt64);
  EXPECT_EQ(arrow_type("tdD").stored, DType::kInt32);
  EXPECT_EQ(arrow_type("tsu:Europe/Berlin").kind, ArrowKind::kNumber);
  EXPECT_EQ(arrow_type("w:16").size, 16);
  for (const char* format : {"n", "d:5,2", "tiM", "+m", "+ud:0,1", "+us:0", "+r", "+vl", "?", ""}) {
    EXPECT_EQ(arrow_type(format).kind, ArrowKind::kRefused) << format;
    EXPECT_FALSE(arrow_type(format).remedy.empty()) << format;
  }
  for (const char* format : {"w:", "w:-1", "+w:x", "+w:1 "}) {
    EXPECT_THROW(arrow_type(format), Error) << format;
  }
}

}  // namespace
}  // namespace penstock
