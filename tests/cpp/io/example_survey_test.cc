#include <gtest/gtest.h>

#include <vector>

#include "penstock/io/example_writer.h"
#include "penstock/io/survey.h"

namespace penstock {
namespace {

using Bytes = std::vector<std::byte>;

std::span<const std::byte> text(std::string_view words) {
  return std::as_bytes(std::span(words.data(), words.size()));
}

Bytes copy(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

Bytes sample(int64_t label, size_t floats, std::string_view words) {
  ExampleWriter writer;
  writer.int64("label", {&label, 1});
  writer.float32("x", std::vector<float>(floats, 1.5f));
  writer.bytes("text", text(words));
  return copy(writer.finish());
}

TEST(ExampleSurvey, features_are_counted_by_type_and_number) {
  ExampleSurvey survey;
  survey.add(sample(3, 2, "ab"));
  survey.add(sample(300, 5, "abc"));
  ExampleWriter writer;
  const float number = 1;
  writer.float32("label", {&number, 1});
  survey.add(writer.finish());
  EXPECT_EQ(survey.examples(), 3u);
  EXPECT_EQ(survey.others(), 0u);
  ASSERT_EQ(survey.features().size(), 3u);
  const auto& label = survey.features().find("label")->second;
  EXPECT_EQ(label.records, 3u);
  EXPECT_EQ(label.of_type, (std::array<uint64_t, 4>{0, 0, 1, 2}));
  EXPECT_EQ(label.least, 1u);
  EXPECT_EQ(label.most, 1u);
  const auto& x = survey.features().find("x")->second;
  EXPECT_EQ(x.records, 2u);
  EXPECT_EQ(x.least, 2u);
  EXPECT_EQ(x.most, 5u);
  const auto& words = survey.features().find("text")->second;
  EXPECT_EQ(words.least_bytes, 2u);
  EXPECT_EQ(words.most_bytes, 3u);
}

TEST(ExampleSurvey, what_is_no_example_is_counted_apart) {
  ExampleSurvey survey;
  survey.add({});
  survey.add(text("words"));
  const Bytes whole = sample(3, 2, "ab");
  for (size_t bytes = 1; bytes < whole.size(); ++bytes) survey.add(std::span(whole).first(bytes));
  EXPECT_EQ(survey.examples(), 0u);
  EXPECT_EQ(survey.others(), 1 + whole.size());
}

TEST(ExampleSurvey, a_name_that_comes_twice_is_in_one_record) {
  ExampleWriter writer;
  const int64_t numbers[] = {1, 2};
  writer.int64("x", numbers);
  writer.int64("x", numbers);
  ExampleSurvey survey;
  survey.add(writer.finish());
  EXPECT_EQ(survey.features().find("x")->second.records, 1u);
}

TEST(ExampleSurvey, sequences_are_told_from_examples) {
  SequenceExampleWriter writer;
  const int64_t number = 1;
  writer.context().int64("id", {&number, 1});
  writer.list("frames");
  writer.int64({&number, 1});
  ExampleSurvey survey;
  survey.add(writer.finish());
  survey.add(sample(1, 1, ""));
  EXPECT_EQ(survey.examples(), 2u);
  EXPECT_EQ(survey.sequences(), 1u);
}

TEST(ExampleSurvey, names_are_bounded) {
  ExampleSurvey survey;
  const int64_t number = 1;
  for (size_t i = 0; i < ExampleSurvey::kMaxNames + 10; ++i) {
    ExampleWriter writer;
    writer.int64(std::to_string(i), {&number, 1});
    survey.add(writer.finish());
  }
  EXPECT_EQ(survey.features().size(), ExampleSurvey::kMaxNames);
  EXPECT_EQ(survey.examples(), ExampleSurvey::kMaxNames + 10);
}

}  // namespace
}  // namespace penstock
