// Errors of ExampleParser for records that do not match the features, and for invalid bytes.
#include <gtest/gtest.h>

#include "example_parsing.h"
#include "penstock/base/error.h"

namespace penstock {
namespace {

using namespace std::string_literals;

TEST(ExampleParser, a_failure_says_which_feature_what_and_where) {
  const std::string before = entry("b", bytes_feature({"xx"}));
  const auto text = [&](const ExampleFeature& feature, const std::string& value) {
    return parse_one(feature, example(before + entry("a", value))).text;
  };
  EXPECT_EQ(text(ints("a", 4), int64_feature({1, 2, 300})),
            "feature 'a': 3 values, expected 4, at byte 26");
  EXPECT_EQ(text(ints("a", 2), int64_feature({1, 2, 300})),
            "feature 'a': 3 values, expected 2, at byte 26");
  EXPECT_EQ(text(floats("a", 4), float_feature({1})),
            "feature 'a': 1 values, expected 4, at byte 26");
  EXPECT_EQ(text(floats("a", 4), int64_feature({1})),
            "feature 'a': int64, expected float32, at byte 26");
  EXPECT_EQ(text(ints("a", 4), field(1, "")), "feature 'a': bytes, expected int64, at byte 17");
  EXPECT_EQ(text(bytes("a", 4), bytes_feature({"abc"})),
            "feature 'a': 3 bytes, expected 4, at byte 26");
  EXPECT_EQ(text(bytes("a", 4), bytes_feature({"abc", "d"})),
            "feature 'a': 2 byte strings, expected one, at byte 17");
  EXPECT_EQ(text(string("a"), bytes_feature({"abc", "d"})),
            "feature 'a': 2 byte strings, expected one, at byte 17");
  EXPECT_EQ(text(ints("c", 4), int64_feature({1})), "feature 'c': is missing and has no default");
  EXPECT_EQ(text(floats("a", 1), field(2, field(1, "12345"))),
            "feature 'a': packed floats whose length is no multiple of 4, at byte 26");
  ExampleFeature narrow = ints("a", 1);
  narrow.dtype = DType::kInt32;
  EXPECT_EQ(text(narrow, int64_feature({int64_t{1} << 31})),
            "feature 'a': 2147483648 does not fit into int32, at byte 26");
  EXPECT_EQ(text(narrow, int64_feature({INT64_MIN})),
            "feature 'a': -9223372036854775808 does not fit into int32, at byte 26");
  EXPECT_EQ(parse_one(string("a"), "\x0A\x05\x0A").text,
            "a field extends beyond the end of the message, at byte 0");
}

TEST(ExampleParser, garbage_on_the_wire_is_a_failure) {
  const auto at_every_depth = [](const std::string& garbage) {
    const std::string good = field(1, packed({1}));
    return std::vector<std::string>{
        garbage,
        example("") + garbage,
        example(garbage),
        example(entry("b", "") + garbage),
        example(field(1, garbage)),
        example(field(1, field(1, "a") + garbage)),
        example(entry("a", garbage)),
        example(entry("a", int64_feature({1}) + garbage)),
        example(entry("a", field(3, garbage))),
        example(entry("a", field(3, good + garbage))),
    };
  };
  const std::vector<std::pair<std::string, ExampleFault>> kinds = {
      {"\x0A\x05shrt", ExampleFault::kCut},  // a length beyond the end
      {"\x4A\xFF\xFF\xFF\xFF\x7Fx", ExampleFault::kCut},
      {"\x4A" + std::string(9, '\xFF') + "\x01", ExampleFault::kCut},
      {"\x0A", ExampleFault::kCut},
      {"\xFF", ExampleFault::kCut},
      {"\x4D\x01\x02\x03", ExampleFault::kCut},
      {"\x49\x01\x02\x03\x04\x05\x06\x07", ExampleFault::kCut},
      {"\x48" + std::string(10, '\x80') + "\x01", ExampleFault::kVarint},
      {"\x48" + std::string(9, '\x80'), ExampleFault::kCut},
      {std::string(10, '\x80') + "\x01", ExampleFault::kVarint},
      {"\x02\x01x"s, ExampleFault::kTag},  // field 0
      {"\x00"s, ExampleFault::kTag},
      {"\x82\x80\x80\x80\x10\x01x", ExampleFault::kTag},  // field 2^29
      {"\x0E\x01", ExampleFault::kTag},                   // wire types 6 and 7
      {"\x0F\x01", ExampleFault::kTag},
      {"\x5C", ExampleFault::kGroup},      // an end without a beginning
      {"\x5B", ExampleFault::kGroup},      // a beginning without an end
      {"\x5B\x64", ExampleFault::kGroup},  // the end of another
      {std::string(101, '\x5B') + std::string(101, '\x5C'), ExampleFault::kGroup},
  };
  for (const auto& [garbage, fault] : kinds) {
    for (const std::string& message : at_every_depth(garbage)) {
      const Outcome outcome = parse_one(ragged("a", Type::kInt64), message);
      EXPECT_EQ(outcome.failure.fault, fault) << outcome.text;
    }
  }
  EXPECT_EQ(fault_of(ints("a", 1), std::string(100, '\x5B') + std::string(100, '\x5C') +
                                       example(entry("a", int64_feature({1})))),
            ExampleFault::kNone);
}

TEST(ExampleParser, broken_numbers_in_a_list_are_a_failure) {
  const auto list = [](const std::string& run) {
    return example(entry("a", field(3, field(1, run))));
  };
  ExampleFeature narrow = ints("a", 1);
  narrow.dtype = DType::kInt32;
  for (const ExampleFeature& feature : {ints("a", 1), ragged("a", Type::kInt64), narrow}) {
    EXPECT_EQ(fault_of(feature, list("\x80")), ExampleFault::kCut);
    EXPECT_EQ(fault_of(feature, list("\x01\x80")), ExampleFault::kCut);
    EXPECT_EQ(fault_of(feature, list(std::string(9, '\x80'))), ExampleFault::kCut);
    EXPECT_EQ(fault_of(feature, list(std::string(10, '\x80') + "\x01")), ExampleFault::kVarint);
    EXPECT_EQ(fault_of(feature, list(std::string(30, '\x80') + "\x01")), ExampleFault::kVarint);
  }
  EXPECT_EQ(fault_of(ragged("a", Type::kInt64),
                     example(entry("a", field(3, field(1, "\x01") + field(1, "\x80"))))),
            ExampleFault::kCut);
}

TEST(ExampleParser, what_cannot_be_wanted_is_an_error) {
  const auto refused = [](const Features& features) {
    try {
      ExampleParser parser(features);
      return false;
    } catch (const Error& error) {
      return error.code() == Code::kInvalidArgument;
    }
  };
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused({ints("a", 1), floats("a", 1)}));
  EXPECT_TRUE(refused({ragged("a", Type::kBytes)}));
  EXPECT_TRUE(refused({{.name = "a", .type = Type::kInt64, .form = Form::kString}}));
  EXPECT_TRUE(refused({{.name = "a", .type = Type::kFloat32, .form = Form::kStrings}}));
  EXPECT_TRUE(refused({{.name = "a", .type = static_cast<Type>(0)}}));
  EXPECT_TRUE(refused({{.name = "a", .form = static_cast<Form>(4)}}));
  EXPECT_TRUE(refused({floats("a", uint64_t{1} << 62)}));
  for (auto [type, dtype] : {std::pair(Type::kInt64, DType::kUint8),
                             {Type::kFloat32, DType::kInt32},
                             {Type::kBytes, DType::kInt64},
                             {Type::kInt64, static_cast<DType>(99)}}) {
    EXPECT_TRUE(refused({{.name = "a", .type = type, .form = Form::kFixed, .dtype = dtype}}));
  }
  const auto shaped = [](ExampleFeature feature, Shape shape) {
    feature.shape = std::move(shape);
    return feature;
  };
  EXPECT_FALSE(refused({shaped(ints("a", 6), {2, 3}), shaped(floats("b", 1), {})}));
  EXPECT_TRUE(refused({shaped(ints("a", 6), {2, 2})}));
  EXPECT_TRUE(refused({shaped(ints("a", 6), {-2, -3})}));
  EXPECT_TRUE(refused({shaped(ints("a", 0), {int64_t{1} << 62, 4})}));
  EXPECT_TRUE(refused({shaped(ragged("a", Type::kInt64), {1})}));
  EXPECT_TRUE(refused({with_default(ints("a", 2), raw<int64_t>({1}))}));
  EXPECT_TRUE(refused({with_default(ragged("a", Type::kInt64), "1234")}));
  EXPECT_TRUE(refused({with_default(string("a"), "1234", {4})}));
  EXPECT_TRUE(refused({with_default(strings("a"), "1234", {3})}));
  EXPECT_TRUE(refused({with_default(strings("a"), "1234", {5})}));
  EXPECT_TRUE(refused({with_default(strings("a"), "1234", {5, -1})}));
  EXPECT_FALSE(refused({with_default(strings("a"), "1234", {4, 0})}));
}

// Truncated at any byte, or with any bit of any byte changed: the result is that of the plain
// decoder.
TEST(ExampleParser, damaged_messages_are_read_as_protobuf_says_or_fail) {
  const std::string group = "\x5B\x08\x01\x5C";
  const Features features = {
      with_default(ints("label", 1), raw<int64_t>({-7})),
      with_default(floats("x", 2), raw<float>({1, 2})), with_default(bytes("raw", 3), "abc"),
      with_default(strings("many"), "", {}), with_default(ragged("ids", Type::kInt64), "")};
  const std::string sound =
      entry("label", int64_feature({300})) + entry("x", float_feature({3, 4}));
  const std::vector<std::string> messages = {
      example(sound + entry("raw", bytes_feature({"xyz"}))),
      example(entry("many", bytes_feature({"a", "", "bcd"})) +
              entry("ids", int64_feature({1, -1, 1 << 20, 70'000}))),
      example(entry("ids", field(3, varint_field(1, 300) + field(1, packed({1, 300})) + group)) +
              field(1, field(1, "label") + field(2, int64_feature({5})) + group)) +
          group + varint_field(7, 1) + example(entry("label", int64_feature({1}))),
  };
  ExampleParser parser(features);
  const auto agree = [&](const std::string& message) {
    const auto got = parse(parser, message);
    ASSERT_EQ(got, expected(features, message)) << parser.failure_text();
    if (!got) {
      ASSERT_NE(parser.failure().fault, ExampleFault::kNone);
      ASSERT_LE(parser.failure().byte, message.size());
    }
  };
  for (const std::string& message : messages) {
    ASSERT_TRUE(expected(features, message));
    for (size_t at = 0; at <= message.size(); ++at) {
      ASSERT_NO_FATAL_FAILURE(agree(message.substr(0, at))) << at;
      if (at % 8 == 0) {  // the parser's cached record is valid again
        ASSERT_NO_FATAL_FAILURE(agree(message));
      }
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
