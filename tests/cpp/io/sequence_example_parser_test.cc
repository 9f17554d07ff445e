#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "example_parsing.h"
#include "penstock/base/error.h"
#include "penstock/io/example_parser.h"
#include "penstock/io/example_writer.h"
#include "sequence_examples.h"

namespace penstock {
namespace {

using namespace std::string_literals;

ExampleFeature fixed(const std::string& name, Type type, uint64_t count) {
  return {.name = name, .type = type, .form = Form::kFixed, .count = count};
}
ExampleFeature optional(ExampleFeature feature) {
  feature.default_value.emplace();
  return feature;
}

struct ListOutcome {
  ExampleFailure failure;
  std::string text;
  GotSteps got;
};
ListOutcome parse_list(const ExampleFeature& list, const std::string& record) {
  SequenceExampleParser parser({}, {list});
  auto got = parse(parser, 0, record);
  if (got) return {{}, "", got->lists.front()};
  return {parser.failure(), parser.failure_text(), {}};
}
ListOutcome parse_steps(const ExampleFeature& list, const std::vector<std::string>& steps) {
  return parse_list(list, lists(list_entry(list.name, steps)));
}

// Written down byte by byte from the specification.
TEST(SequenceExampleParser, reads_a_message_made_by_hand) {
  // clang-format off
  const std::string message =
      "\x0A\x0C\x0A\x0A\x0A\x01" "n" "\x12\x05"   // SequenceExample.context: "n"
      "\x1A\x03\x0A\x01\x02"                      // int64_list: 2
      "\x12\x2D"                                  // feature_lists, 45 bytes
      "\x0A\x19\x0A\x01" "x" "\x12\x14"           // "x": FeatureList of 20 bytes
      "\x0A\x08\x12\x06\x0A\x04\x00\x00\x80\x3F"  // float_list: 1.0
      "\x0A\x08\x12\x06\x0A\x04\x00\x00\x00\x40"  // float_list: 2.0
      "\x0A\x10\x0A\x01" "s" "\x12\x0B"           // "s": FeatureList of 11 bytes
      "\x0A\x05\x0A\x03\x0A\x01" "a"              // bytes_list: "a"
      "\x0A\x02\x0A\x00"s;                        // an empty bytes_list
  // clang-format on
  SequenceExampleParser parser({fixed("n", Type::kInt64, 1)}, {fixed("x", Type::kFloat32, 1)});
  const auto got = parse(parser, 1, message);
  ASSERT_TRUE(got) << parser.failure_text();
  EXPECT_EQ(as<int64_t>(got->context[0]), (std::vector<int64_t>{2}));
  EXPECT_EQ(got->lists[0].steps, 2u);
  EXPECT_EQ(as<float>(got->lists[0].all), (std::vector<float>{1, 2}));
  EXPECT_EQ(parse_list(string("s"), message).text,
            "feature 's', step 1: 0 byte strings, expected one, at byte 59");
}

TEST(SequenceExampleParser, steps_lie_one_after_the_other) {
  const GotSteps ints =
      parse_steps(fixed("a", Type::kInt64, 2), {int64_feature({1, 300}), int64_feature({-1, 4})})
          .got;
  EXPECT_EQ(ints.steps, 2u);
  EXPECT_EQ(as<int64_t>(ints.all), (std::vector<int64_t>{1, 300, -1, 4}));
  EXPECT_TRUE(ints.all.lengths.empty());

  const GotSteps differing =
      parse_steps(ragged("a", Type::kInt64), {int64_feature({1, 2}), field(3, ""), "",
                                              int64_feature({3}) + int64_feature({4, 5})})
          .got;
  EXPECT_EQ(as<int64_t>(differing.all), (std::vector<int64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(differing.all.lengths, (std::vector<int64_t>{2, 0, 0, 3}));

  const GotSteps strings =
      parse_steps(string("a"), {bytes_feature({"one"}), bytes_feature({""}), bytes_feature({"3"})})
          .got;
  EXPECT_EQ(strings.all.values, "one3");
  EXPECT_EQ(strings.all.lengths, (std::vector<int64_t>{3, 0, 1}));

  const GotSteps rows =
      parse_steps(fixed("a", Type::kBytes, 2), {bytes_feature({"ab"}), bytes_feature({"cd"})}).got;
  EXPECT_EQ(rows.all.values, "abcd");
  EXPECT_TRUE(rows.all.lengths.empty());

  ExampleFeature narrow = ragged("a", Type::kInt64);
  narrow.dtype = DType::kInt32;
  EXPECT_EQ(as<int32_t>(parse_steps(narrow, {int64_feature({-5}), int64_feature({6})}).got.all),
            (std::vector<int32_t>{-5, 6}));
}

TEST(SequenceExampleParser, a_list_that_is_not_there_is_a_failure_or_has_no_steps) {
  for (const ExampleFeature& list :
       {fixed("a", Type::kFloat32, 2), ragged("a", Type::kInt64), string("a")}) {
    for (const std::string& message : {""s, lists(""), lists(list_entry("b", {"", ""})),
                                       example(entry("a", int64_feature({1})))}) {
      EXPECT_EQ(parse_list(list, message).text, "feature 'a': is missing and has no default");
      EXPECT_EQ(parse_list(optional(list), message).failure.fault, ExampleFault::kNone);
      EXPECT_EQ(parse_list(optional(list), message).got, GotSteps{});
    }
    for (const std::string& message :
         {lists(list_entry("a", {})), lists(field(1, field(1, "a")))}) {
      EXPECT_EQ(parse_list(list, message).failure.fault, ExampleFault::kNone);
      EXPECT_EQ(parse_list(list, message).got, GotSteps{});
    }
  }
}

TEST(SequenceExampleParser, parts_of_a_list_are_one_and_of_two_entries_the_last_counts) {
  const std::string one = field(1, int64_feature({1})), two = field(1, int64_feature({2}));
  const std::string other = list_entry("a", {int64_feature({9})});
  const std::string parts = field(1, field(1, "a") + field(2, one) + field(2, two));
  for (const std::string& message :
       {lists(parts), lists(other + parts), lists(other) + lists(parts)}) {
    EXPECT_EQ(as<int64_t>(parse_list(fixed("a", Type::kInt64, 1), message).got.all),
              (std::vector<int64_t>{1, 2}));
  }
}

TEST(SequenceExampleParser, a_failure_says_which_step) {
  const auto text = [](const ExampleFeature& list, const std::string& step) {
    return parse_steps(list, {int64_feature({1, 2}), step}).text;
  };
  EXPECT_EQ(text(fixed("a", Type::kInt64, 2), int64_feature({1})),
            "feature 'a', step 1: 1 values, expected 2, at byte 19");
  EXPECT_EQ(text(ragged("a", Type::kInt64), float_feature({1})),
            "feature 'a', step 1: float32, expected int64, at byte 19");
  EXPECT_EQ(text(fixed("a", Type::kInt64, 2), ""),
            "feature 'a', step 1: has no values, at byte 19");
  ExampleFeature narrow = ragged("a", Type::kInt64);
  narrow.dtype = DType::kInt32;
  EXPECT_EQ(text(narrow, int64_feature({1, int64_t{1} << 40})),
            "feature 'a', step 1: 1099511627776 does not fit into int32, at byte 24");
  EXPECT_EQ(parse_list(string("a"), lists("\x0A\x05\x0A")).text,
            "a field extends beyond the end of the message, at byte 2");
  SequenceExampleParser parser({string("c")}, {string("a")});
  EXPECT_FALSE(parse(parser, 1, lists(list_entry("a", {}))));
  EXPECT_EQ(parser.failure_text(), "feature 'c': is missing and has no default");
  EXPECT_FALSE(parse(parser, 1, example(entry("c", bytes_feature({"x"})))));
  EXPECT_EQ(parser.failure_text(), "feature 'a': is missing and has no default");
  EXPECT_EQ(parser.failure().feature, 1u);
}

TEST(SequenceExampleParser, what_cannot_be_wanted_is_an_error) {
  const auto refused = [](const Features& context, const Features& wanted) {
    try {
      SequenceExampleParser parser(context, wanted);
      return false;
    } catch (const Error& error) {
      return error.code() == Code::kInvalidArgument;
    }
  };
  EXPECT_TRUE(refused({}, {}));
  EXPECT_TRUE(refused({}, {string("a"), string("a")}));
  EXPECT_TRUE(refused({string("a"), string("a")}, {string("a")}));
  EXPECT_TRUE(refused({}, {{.name = "a", .form = Form::kStrings}}));
  ExampleFeature filled = optional(string("a"));
  filled.default_value->values.resize(1);
  EXPECT_TRUE(refused({}, {filled}));
  EXPECT_FALSE(refused({string("a")}, {string("a")}));
  EXPECT_FALSE(refused({string("a")}, {}));
  EXPECT_FALSE(refused({}, {optional(fixed("a", Type::kInt64, 3))}));
}

// Random sequences from the writer are read back.
TEST(SequenceExampleParser, what_is_written_is_read) {
  std::mt19937_64 random(3);
  auto below = [&](uint64_t n) { return random() % n; };
  const Features context = {fixed("label", Type::kInt64, 1), string("id")};
  const Features wanted = {fixed("frame", Type::kFloat32, 3), ragged("ids", Type::kInt64),
                           string("word"), fixed("raw", Type::kBytes, 2),
                           optional(ragged("never", Type::kFloat32))};
  SequenceExampleParser parser(context, wanted);
  SequenceExampleWriter writer;
  for (int round = 0; round < 3000; ++round) {
    GotSequence written{.context = std::vector<GotValue>(2), .lists = std::vector<GotSteps>(5)};
    const std::vector<int64_t> label = {static_cast<int64_t>(random())};
    writer.context().int64("label", label);
    written.context[0] = {.values = raw(label), .lengths = {}, .count = 1};
    const std::string id(below(40), 'i');
    writer.context().bytes("id", std::as_bytes(std::span(id)));
    written.context[1] = {.values = id, .lengths = {}, .count = id.size()};
    std::vector<size_t> order = {0, 1, 2, 3};
    if (below(3) == 0) std::shuffle(order.begin(), order.end(), random);
    for (size_t i : order) {
      writer.list(wanted[i].name);
      GotSteps& steps = written.lists[i];
      steps.steps = below(6);
      for (uint64_t step = 0; step < steps.steps; ++step) {
        std::string values;
        if (i == 0) {
          const std::vector<float> floats = {1, static_cast<float>(below(9)), 2};
          writer.float32(floats);
          values = raw(floats);
        } else if (i == 1) {
          std::vector<int64_t> ints(below(5));
          for (int64_t& value : ints) value = static_cast<int64_t>(random() >> below(64));
          writer.int64(ints);
          values = raw(ints);
        } else {
          values = std::string(i == 2 ? below(7) : 2, static_cast<char>('a' + below(26)));
          writer.bytes(std::as_bytes(std::span(values)));
        }
        const size_t count = values.size() / size_of(wanted[i].output());
        steps.all.values += values;
        steps.all.count += count;
        if (i == 1 || i == 2) steps.all.lengths.push_back(static_cast<int64_t>(count));
      }
    }
    const auto message = writer.finish();
    const std::string_view bytes(reinterpret_cast<const char*>(message.data()), message.size());
    const auto got = parse(parser, 2, bytes);
    ASSERT_TRUE(got) << round << " " << parser.failure_text();
    ASSERT_EQ(*got, written) << round;
  }
}

// Truncated at any byte, or with any byte changed: the result is that of the plain decoder.
TEST(SequenceExampleParser, damaged_messages_are_read_as_protobuf_says_or_fail) {
  const Features context = {fixed("label", Type::kInt64, 1)};
  const Features wanted = {fixed("frame", Type::kFloat32, 1), optional(ragged("ids", Type::kInt64)),
                           optional(string("word")), optional(fixed("raw", Type::kBytes, 2))};
  const std::string sound = example(entry("label", int64_feature({300})));
  const std::string frame = list_entry("frame", {float_feature({1}), float_feature({2})});
  const std::vector<std::string> messages = {
      sound + lists(frame + list_entry("word", {bytes_feature({"ab"}), bytes_feature({""})})),
      sound +
          lists(list_entry("ids", {int64_feature({1, -1}), "", int64_feature({300})}) +
                list_entry("raw", {bytes_feature({"xy"})})) +
          lists(frame),
      lists(
          field(1, field(2, field(1, field(2, varint(1 << 3 | 5) + "four"))) + field(1, "frame")) +
          list_entry("ids", {field(3, varint_field(1, 300) + field(1, packed({1})))}) +
          "\x5B\x08\x01\x5C") +
          sound};
  SequenceExampleParser parser(context, wanted);
  const auto agree = [&](const std::string& message) {
    const auto got = parse(parser, 1, message);
    ASSERT_EQ(got, expected_sequence(parser.features(), 1, message)) << parser.failure_text();
    if (!got) {
      ASSERT_NE(parser.failure().fault, ExampleFault::kNone);
      ASSERT_LE(parser.failure().byte, message.size());
    }
  };
  for (const std::string& message : messages) {
    ASSERT_TRUE(expected_sequence(parser.features(), 1, message));
    for (size_t at = 0; at <= message.size(); ++at) {
      ASSERT_NO_FATAL_FAILURE(agree(message.substr(0, at))) << at;
    }
    for (size_t at = 0; at < message.size(); ++at) {
      for (int value = 0; value < 256; ++value) {
        std::string damaged = message;
        damaged[at] = static_cast<char>(value);
        ASSERT_NO_FATAL_FAILURE(agree(damaged)) << at << " " << value;
        if (value % 8 == 0) {
          ASSERT_NO_FATAL_FAILURE(agree(message));
        }
      }
    }
  }
}

}  // namespace
}  // namespace penstock
