#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "../../io/bytes.h"
#include "../stages/reading.h"
#include "penstock/io/example_writer.h"
#include "penstock/pipeline/transformations/operations.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock::testing {
namespace {

using Form = ExampleFeature::Form;
using Type = ExampleFeature::Type;

const std::vector<ExampleFeature> kContext{
    {.name = "label", .type = Type::kInt64, .form = Form::kFixed},
    {.name = "tags", .type = Type::kBytes, .form = Form::kStrings}};
const std::vector<ExampleFeature> kLists{
    {.name = "frames",
     .type = Type::kFloat32,
     .form = Form::kFixed,
     .count = 4,
     .shape = Shape{2, 2}},
    {.name = "ids", .type = Type::kInt64, .form = Form::kRagged},
    {.name = "words", .type = Type::kBytes, .form = Form::kString}};

// A record of `steps` steps, whose values are derived from `number`.
std::string record(int64_t number, int64_t steps) {
  SequenceExampleWriter writer;
  writer.context().int64("label", {&number, 1});
  const std::span<const std::byte> tags[] = {bytes_of("a"), bytes_of("bcd")};
  writer.context().bytes_list("tags", std::span(tags).first(static_cast<size_t>(number % 3)));
  writer.list("frames");
  for (int64_t i = 0; i < steps; ++i) {
    writer.float32(std::vector<float>(4, static_cast<float>(number * 100 + i)));
  }
  writer.list("ids");
  for (int64_t i = 0; i < steps; ++i) {
    writer.int64(std::vector<int64_t>(static_cast<size_t>(i), number));
  }
  writer.list("words");
  for (int64_t i = 0; i < steps; ++i) {
    writer.bytes(bytes_of(std::string(static_cast<size_t>(i + 1), 'w')));
  }
  const auto message = writer.finish();
  return {reinterpret_cast<const char*>(message.data()), message.size()};
}

// Elements that are these byte strings, as from a source of files.
class Records : public Indexed {
 public:
  explicit Records(std::vector<std::string> records) : records_(std::move(records)) {}
  uint64_t length(uint64_t) const override { return records_.size(); }
  SpecRef spec() const override { return spec_; }
  bool costly() const override { return false; }
  std::unique_ptr<IndexedReader> reader(Context&) const override {
    return std::make_unique<Reader>(*this);
  }

 private:
  class Reader : public IndexedReader {
   public:
    explicit Reader(const Records& stage) : stage_(stage) {}
    void fetch(const At&, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
      for (const uint64_t position : positions) {
        const std::string& text = stage_.records_[position];
        const auto length = static_cast<int64_t>(text.size());
        out.view(0, row++, bytes_of(text).data(), {&length, 1});
      }
    }

   private:
    const Records& stage_;
  };
  const std::vector<std::string> records_;
  const SpecRef spec_ =
      std::make_shared<ElementSpec>(std::vector<Leaf>{{"", LeafKind::kBytes, DType::kUint8, {-1}}});
};

Node::Ref records_node(const std::vector<std::string>& records) {
  return make_node({
      .title = "records",
      .build = [records](std::vector<Built>, Builder&) -> Built {
        return {std::make_shared<Records>(records)};
      },
  });
}

template <class T>
std::vector<T> values(const Example& element, const char* name) {
  const auto span = element.at(name).as_span<const T>();
  return {span.begin(), span.end()};
}

TEST(ParseSequenceExample, context_and_lists_come_out_side_by_side) {
  std::vector<std::string> records;
  for (int64_t i = 0; i < 100; ++i) records.push_back(record(i, i % 5));
  Reading reading(nodes::map(records_node(records), parse_sequence_example(kContext, kLists)));
  EXPECT_EQ(reading.stage().spec()->to_string(),
            "{label: int64 (), tags: bytes, tags/lengths: ragged int64 (?,), "
            "frames: ragged float32 (?, 2, 2), ids: ragged int64 (?,), "
            "ids/lengths: ragged int64 (?,), words: bytes, words/lengths: ragged int64 (?,)}");
  const std::vector<Made> made = reading.epoch();
  ASSERT_EQ(made.size(), 100u);
  for (int64_t i = 0; i < 100; ++i) {
    const Example& element = *made[static_cast<size_t>(i)];
    const int64_t steps = i % 5;
    EXPECT_EQ(values<int64_t>(element, "label"), std::vector{i});
    const std::vector<int64_t> lengths{1, 3};
    EXPECT_EQ(values<int64_t>(element, "tags/lengths"),
              std::vector<int64_t>(lengths.begin(), lengths.begin() + i % 3));
    EXPECT_EQ(element.at("frames").shape(), (Shape{steps, 2, 2}));
    std::vector<float> frames;
    std::vector<int64_t> ids, id_lengths, word_lengths;
    size_t letters = 0;
    for (int64_t step = 0; step < steps; ++step) {
      frames.insert(frames.end(), 4, static_cast<float>(i * 100 + step));
      ids.insert(ids.end(), static_cast<size_t>(step), i);
      id_lengths.push_back(step);
      word_lengths.push_back(step + 1);
      letters += static_cast<size_t>(step) + 1;
    }
    EXPECT_EQ(values<float>(element, "frames"), frames);
    EXPECT_EQ(values<int64_t>(element, "ids"), ids);
    EXPECT_EQ(values<int64_t>(element, "ids/lengths"), id_lengths);
    EXPECT_EQ(values<uint8_t>(element, "words"), std::vector<uint8_t>(letters, 'w'));
    EXPECT_EQ(values<int64_t>(element, "words/lengths"), word_lengths);
  }
}

TEST(ParseSequenceExample, a_record_that_is_wrong_fails_alone_and_says_where) {
  std::vector<std::string> records{record(0, 2), record(1, 3), record(2, 1)};
  records[1].resize(records[1].size() - 3);
  SequenceExampleWriter writer;
  writer.list("ids");
  const auto message = writer.finish();
  records.emplace_back(reinterpret_cast<const char*>(message.data()), message.size());
  Reading reading(nodes::map(records_node(records), parse_sequence_example({}, kLists)));
  const std::vector<Made> made = reading.epoch();
  EXPECT_TRUE(made[0] && !made[1] && made[2] && !made[3]);
  ASSERT_EQ(reading.failures().size(), 2u);
  EXPECT_EQ(reading.failures()[1].second.stage, "map(parse_sequence_example)");
  EXPECT_NE(text_of(reading.failures()[1].second).find("feature 'frames'"), std::string::npos);
}

TEST(ParseSequenceExample, what_cannot_be_is_refused) {
  EXPECT_THROW(parse_sequence_example({}, {}), Error);
  EXPECT_THROW(parse_sequence_example(kContext, kContext), Error);
  EXPECT_THROW(Reading(nodes::map(range(3), parse_sequence_example({}, kLists))), Error);
}

}  // namespace
}  // namespace penstock::testing
