#include <gtest/gtest.h>

#include <cstring>

#include "../../io/bytes.h"
#include "penstock/base/error.h"
#include "penstock/io/example_writer.h"
#include "penstock/pipeline/transformations/operations.h"

namespace penstock {
namespace {

using Form = ExampleFeature::Form;
using Type = ExampleFeature::Type;

const SpecRef kRecords =
    std::make_shared<ElementSpec>(std::vector<Leaf>{{"", LeafKind::kBytes, DType::kUint8, {-1}}});

std::string example(const std::function<void(ExampleWriter&)>& write) {
  ExampleWriter writer;
  write(writer);
  auto bytes = writer.finish();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class ParseExample : public ::testing::Test {
 protected:
  // Rows 2, 3, ... of a chunk.
  void run(const OpRef& op, const std::vector<std::string>& records, bool bound = false) {
    const auto end = static_cast<uint32_t>(2 + records.size());
    in.reset(kRecords, end);
    for (uint32_t i = 0; i < records.size(); ++i) {
      const auto length = static_cast<int64_t>(records[i].size());
      in.view(0, 2 + i, bytes_of(records[i]).data(), {&length, 1});
    }
    SpecRef spec = op->result(*kRecords);
    out.reset(spec, end);
    columns.clear();
    for (size_t leaf = 0; bound && leaf < spec->leaves().size(); ++leaf) {
      if (!spec->leaves()[leaf].fixed()) continue;
      const uint64_t stride = out.row_bytes(leaf) + 3;
      columns.push_back(std::vector<std::byte>(stride * end));
      out.bind(leaf, columns.back().data(), stride);
    }
    std::vector<uint64_t> positions(records.size());
    run_of = op->bind(kRecords, context);
    run_of->run(Keys(context, 0, positions, 1), in, out, 2);
  }
  template <class T>
  std::vector<T> values(size_t leaf, uint32_t row) {
    uint64_t count = 1;
    for (int64_t length : out.shape(leaf, row)) count *= static_cast<uint64_t>(length);
    std::vector<T> made(count);
    if (count > 0) std::memcpy(made.data(), out.at(leaf, row), count * sizeof(T));
    return made;
  }
  std::string text(size_t leaf, uint32_t row) {
    auto made = values<char>(leaf, row);
    return {made.begin(), made.end()};
  }

  Scratch scratch;
  Context context{scratch};
  Chunk in{scratch}, out{scratch};
  std::vector<std::vector<std::byte>> columns;
  std::unique_ptr<OpRun> run_of;  // its values may lie in its defaults
};

TEST_F(ParseExample, every_form_is_a_leaf_under_its_name) {
  OpRef op = parse_example({
      {.name = "label", .type = Type::kInt64, .form = Form::kFixed},
      {.name = "x",
       .type = Type::kFloat32,
       .form = Form::kFixed,
       .count = 6,
       .shape = std::vector<int64_t>{2, 3}},
      {.name = "raw", .type = Type::kBytes, .form = Form::kFixed, .count = 4},
      {.name = "id", .type = Type::kInt64, .form = Form::kFixed, .dtype = DType::kInt32},
      {.name = "floats", .type = Type::kFloat32, .form = Form::kRagged},
      {.name = "ints", .type = Type::kInt64, .form = Form::kRagged},
      {.name = "image", .type = Type::kBytes, .form = Form::kString},
      {.name = "words", .type = Type::kBytes, .form = Form::kStrings},
      {.name = "one", .type = Type::kInt64, .form = Form::kFixed, .shape = std::vector<int64_t>{1}},
  });
  EXPECT_EQ(op->title(), "parse_example");
  SpecRef spec = op->result(*kRecords);
  EXPECT_EQ(spec->leaves()[0].shape, (Shape{}));
  EXPECT_EQ(spec->leaves()[1].shape, (Shape{2, 3}));
  EXPECT_EQ(spec->leaves()[2].shape, (Shape{4}));
  EXPECT_EQ(spec->leaves()[2].dtype, DType::kUint8);
  EXPECT_EQ(spec->leaves()[3].dtype, DType::kInt32);
  EXPECT_EQ(spec->leaves()[4].kind, LeafKind::kRagged);
  EXPECT_EQ(spec->leaves()[6].kind, LeafKind::kBytes);
  EXPECT_EQ(spec->leaves()[8].name, "words/lengths");
  EXPECT_EQ(spec->leaves()[9].shape, (Shape{1}));

  std::vector<std::string> records;
  for (int64_t i = 0; i < 20; ++i) {
    records.push_back(example([&](ExampleWriter& writer) {
      std::vector<float> x(6), floats(static_cast<size_t>(i));
      for (size_t k = 0; k < x.size(); ++k) x[k] = static_cast<float>(10 * i) + k;
      for (float& value : floats) value = static_cast<float>(i) / 2;
      std::vector<int64_t> ints(static_cast<size_t>(i % 4), -i);
      const std::string image(static_cast<size_t>(i * 3), 'i');
      const std::vector<std::span<const std::byte>> words(static_cast<size_t>(i % 3),
                                                          bytes_of(image));
      writer.bytes("image", bytes_of(image));
      writer.int64("label", {{i * 1000}});
      writer.int64("one", {{i}});
      writer.float32("x", x);
      writer.bytes("raw", bytes_of("raw" + std::to_string(i % 10)));
      writer.int64("id", {{-i}});
      writer.float32("floats", floats);
      writer.int64("ints", ints);
      writer.bytes_list("words", words);
      writer.int64("nobody wants this", {{i}});
    }));
  }
  for (bool bound : {false, true}) {
    run(op, records, bound);
    ASSERT_TRUE(out.failures().empty());
    for (uint32_t row = 2; row < 22; ++row) {
      const int64_t i = row - 2;
      EXPECT_EQ(values<int64_t>(0, row), std::vector<int64_t>{i * 1000});
      EXPECT_EQ(values<float>(1, row)[5], static_cast<float>(10 * i + 5));
      EXPECT_EQ(text(2, row), "raw" + std::to_string(i % 10));
      EXPECT_EQ(values<int32_t>(3, row), std::vector<int32_t>{static_cast<int32_t>(-i)});
      EXPECT_EQ(values<float>(4, row),
                std::vector<float>(static_cast<size_t>(i), static_cast<float>(i) / 2));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(out.at(4, row)) % 4, 0u);
      EXPECT_EQ(values<int64_t>(5, row), std::vector<int64_t>(static_cast<size_t>(i % 4), -i));
      const std::string image(static_cast<size_t>(i * 3), 'i');
      EXPECT_EQ(text(6, row), image);
      if (i > 0) {
        EXPECT_GE(out.at(6, row), bytes_of(records[static_cast<size_t>(i)]).data());
        EXPECT_LT(out.at(6, row), bytes_of(records[static_cast<size_t>(i)]).data() +
                                      records[static_cast<size_t>(i)].size());
      }
      EXPECT_EQ(values<int64_t>(8, row), std::vector<int64_t>(static_cast<size_t>(i % 3), i * 3));
      EXPECT_EQ(text(7, row).size(), static_cast<size_t>(i % 3 * i * 3));
      EXPECT_EQ(values<int64_t>(9, row), std::vector<int64_t>{i});
    }
  }
}

TEST_F(ParseExample, a_record_that_is_none_is_lost_and_its_neighbours_are_not) {
  OpRef op = parse_example({{.name = "n", .type = Type::kInt64, .form = Form::kFixed}});
  auto good = example([](ExampleWriter& writer) { writer.int64("n", {{7}}); });
  auto two = example([](ExampleWriter& writer) { writer.int64("n", {{7, 8}}); });
  for (bool bound : {false, true}) {
    run(op, {good, "garbage", good, two, "", good}, bound);
    ASSERT_EQ(out.failures().size(), 3u);
    EXPECT_EQ(out.alive() >> 2, 0b100101u);
    std::vector<std::string> texts;
    for (auto& [row, failure] : out.failures()) {
      try {
        std::rethrow_exception(failure.error);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kDataLoss);
        texts.push_back(error.what());
      }
    }
    EXPECT_TRUE(texts[1].starts_with("parse_example: feature 'n': 2 values, expected 1"))
        << texts[1];
    EXPECT_EQ(texts[2], "parse_example: feature 'n': is missing and has no default");
    for (uint32_t row : {2, 4, 7}) EXPECT_EQ(values<int64_t>(0, row)[0], 7);
  }
}

TEST_F(ParseExample, rows_that_are_lost_already_are_passed_by) {
  OpRef op = parse_example({{.name = "n", .type = Type::kInt64, .form = Form::kFixed}});
  auto good = example([](ExampleWriter& writer) { writer.int64("n", {{7}}); });
  in.reset(kRecords, 3);
  const auto length = static_cast<int64_t>(good.size());
  for (uint32_t row : {0, 2}) in.view(0, row, bytes_of(good).data(), {&length, 1});
  in.fail(1, {});
  out.reset(op->result(*kRecords), 3);
  std::vector<uint64_t> positions(3);
  run_of = op->bind(kRecords, context);
  run_of->run(Keys(context, 0, positions, 1), in, out, 0);
  EXPECT_TRUE(out.failures().empty());
  EXPECT_EQ(values<int64_t>(0, 2)[0], 7);
}

TEST_F(ParseExample, defaults_stand_for_what_is_not_there) {
  auto seven = std::as_bytes(std::span("7777", 4));
  const std::vector<std::byte> bytes(seven.begin(), seven.end());
  OpRef op = parse_example({
      {.name = "raw", .form = Form::kFixed, .count = 4, .default_value = {{bytes, {}}}},
      {.name = "text", .form = Form::kString, .default_value = {{bytes, {}}}},
      {.name = "words", .form = Form::kStrings, .default_value = {{bytes, {1, 3}}}},
      {.name = "none", .form = Form::kStrings, .default_value = {{{}, {}}}},
  });
  run(op, {"", ""});
  ASSERT_TRUE(out.failures().empty());
  for (uint32_t row : {2, 3}) {
    for (size_t leaf : {0, 1, 2}) EXPECT_EQ(text(leaf, row), "7777");
    EXPECT_EQ(values<int64_t>(3, row), (std::vector<int64_t>{1, 3}));
    EXPECT_EQ(text(4, row), "");
    EXPECT_EQ(out.shape(5, row)[0], 0);
  }
}

TEST(ParseExampleOp, what_cannot_be_is_said_beforehand) {
  auto code = [](std::vector<ExampleFeature> features) {
    try {
      parse_example(std::move(features));
    } catch (const Error& error) {
      return error.code();
    }
    return Code::kInternal;
  };
  EXPECT_EQ(code({}), Code::kInvalidArgument);
  EXPECT_EQ(code({{.name = "a"}, {.name = "a"}}), Code::kInvalidArgument);
  EXPECT_EQ(code({{.name = "a", .form = Form::kStrings}, {.name = "a/lengths"}}),
            Code::kInvalidArgument);
  for (std::vector<int64_t> shape : {std::vector<int64_t>{}, {5}, {-2, -3}, {2, 3, 2}}) {
    EXPECT_EQ(code({{.name = "a", .form = Form::kFixed, .count = 6, .shape = shape}}),
              Code::kInvalidArgument);
  }
  EXPECT_EQ(code({{.name = "a", .shape = std::vector<int64_t>{1}}}), Code::kInvalidArgument);

  OpRef op = parse_example({{.name = "a"}});
  for (Leaf leaf : {Leaf{"", LeafKind::kText, DType::kUint8, {-1}},
                    Leaf{"", LeafKind::kDense, DType::kInt64, {}}}) {
    ElementSpec spec(std::vector<Leaf>{leaf});
    EXPECT_THROW(op->result(spec), Error);
  }
  ElementSpec two(std::vector<Leaf>{{"a", LeafKind::kBytes, DType::kUint8, {-1}},
                                    {"b", LeafKind::kBytes, DType::kUint8, {-1}}});
  EXPECT_THROW(op->result(two), Error);
}

}  // namespace
}  // namespace penstock
