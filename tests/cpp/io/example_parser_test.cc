#include "penstock/io/example_parser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "example_parsing.h"
#include "penstock/base/error.h"

namespace penstock {
namespace {

using namespace std::string_literals;

// Written down byte by byte from the specification.
TEST(ExampleParser, reads_a_message_made_by_hand) {
  const std::string message =
      "\x0A\x2E"  // Example.features, 46 bytes
      "\x0A\x0C\x0A\x01"
      "a"
      "\x12\x07"                      // an entry: "a", Feature of 7 bytes
      "\x1A\x05\x0A\x03\x01\xAC\x02"  // int64_list, packed: 1, 300
      "\x0A\x0F\x0A\x02"
      "bc"
      "\x12\x09"  // "bc"
      "\x0A\x07\x0A\x02"
      "hi"
      "\x0A\x01"
      "!"  // bytes_list: "hi", "!"
      "\x0A\x0D\x0A\x01"
      "f"
      "\x12\x08"                            // "f"
      "\x12\x06\x0A\x04\x00\x00\x80\x3F"s;  // float_list, packed: 1.0
  ExampleParser parser({ints("a", 2), strings("bc"), floats("f", 1)});
  const auto got = parse(parser, message);
  ASSERT_TRUE(got) << parser.failure_text();
  EXPECT_EQ(as<int64_t>((*got)[0]), (std::vector<int64_t>{1, 300}));
  EXPECT_EQ((*got)[1].values, "hi!");
  EXPECT_EQ((*got)[1].lengths, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(as<float>((*got)[2]), (std::vector<float>{1}));
  EXPECT_EQ(message,
            example(entry("a", int64_feature({1, 300})) + entry("bc", bytes_feature({"hi", "!"})) +
                    entry("f", float_feature({1}))));
}

TEST(ExampleParser, values_go_to_rows_or_stay_where_they_lie) {
  const std::string message =
      example(entry("image", bytes_feature({"pixels"})) + entry("x", float_feature({1, 2, 3})) +
              entry("n", int64_feature({-1})));
  ExampleParser parser({string("image"), ragged("x", Type::kFloat32), ints("n", 1)});
  struct NoMemory : ExampleMemory {
    std::byte* take(size_t) override { throw Error(Code::kOutOfMemory, "test", "none"); }
  } none;
  int64_t n = 0;
  std::vector<ExampleValue> values(3);
  values[2].row = reinterpret_cast<std::byte*>(&n);
  const auto record = std::as_bytes(std::span(message));
  ASSERT_TRUE(parser.parse(record, values, none));
  EXPECT_EQ(values[0].data, record.data() + message.find("pixels"));
  EXPECT_EQ(values[0].count, 6u);
  EXPECT_EQ(values[1].data, record.data() + message.find(raw<float>({1, 2, 3})));
  EXPECT_EQ(values[1].count, 3u);
  EXPECT_EQ(n, -1);

  ExampleParser decoding({ragged("n", Type::kInt64)});
  EXPECT_THROW(decoding.parse(record, std::span(values).first(1), none), Error) << "memory's own";
}

TEST(ExampleParser, lists_are_packed_or_not_or_both) {
  const auto one = [](uint64_t value) { return varint_field(1, value); };
  EXPECT_EQ(ints_of(field(3, one(7) + one(300))), (std::vector<int64_t>{7, 300}));
  EXPECT_EQ(ints_of(field(3, one(7))), (std::vector<int64_t>{7}));
  EXPECT_EQ(ints_of(field(3, field(1, packed({1, 2})) + one(3) + field(1, packed({-4})))),
            (std::vector<int64_t>{1, 2, 3, -4}));
  const auto single = [](float value) { return varint(1 << 3 | 5) + raw<float>({value}); };
  EXPECT_EQ(floats_of(field(2, single(1) + single(2))), (std::vector<float>{1, 2}));
  EXPECT_EQ(floats_of(field(2, single(1))), (std::vector<float>{1}));
  EXPECT_EQ(floats_of(field(2, field(1, raw<float>({1, 2})) + single(3))),
            (std::vector<float>{1, 2, 3}));
  const std::string message = example(entry("a", field(3, one(7) + one(300))));
  EXPECT_EQ(as<int64_t>(parse_one(ints("a", 2), message).got), (std::vector<int64_t>{7, 300}));
}

TEST(ExampleParser, every_size_of_a_number_is_read) {
  std::vector<int64_t> all;
  for (int bit = 0; bit < 64; ++bit) {
    const uint64_t power = uint64_t{1} << bit;
    for (uint64_t value : {power - 1, power, power + 1, ~power, power | 0x5555}) {
      all.push_back(static_cast<int64_t>(value));
      ASSERT_EQ(ints_of(int64_feature({all.back()})), (std::vector<int64_t>{all.back()}));
    }
  }
  EXPECT_EQ(ints_of(int64_feature(all)), all);
  // With more bytes than necessary, and with bits beyond 64.
  EXPECT_EQ(ints_of(field(3, field(1, "\x81\x80\x80\x00"s))), (std::vector<int64_t>{1}));
  EXPECT_EQ(ints_of(field(3, field(1, std::string(9, '\xFF') + "\x7F"))),
            (std::vector<int64_t>{-1}));
}

TEST(ExampleParser, lists_in_parts_are_one_list_and_another_type_drops_them) {
  const std::string one = int64_feature({1}), two = int64_feature({2, 3});
  EXPECT_EQ(ints_of(one + two), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(ints_of(one + float_feature({5}) + two), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(ints_of(float_feature({5}) + one + two), (std::vector<int64_t>{1, 2, 3}));
  const std::string parts = field(1, "a") + field(2, one) + field(2, two);
  EXPECT_EQ(as<int64_t>(parse_one(ints("a", 3), example(field(1, parts))).got),
            (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(fault_of(ints("a", 1), example(entry("a", one + float_feature({5})))),
            ExampleFault::kType);
}

TEST(ExampleParser, of_a_feature_that_comes_twice_the_last_counts) {
  const std::string first = entry("a", int64_feature({1})), last = entry("a", int64_feature({2}));
  for (const std::string& message :
       {example(first + last), example(first) + example(last),
        example(entry("a", int64_feature({1, 2, 3})) + last),
        example(entry("a", bytes_feature({"x"})) + entry("b", "") + last),
        example(entry("a", "\xFF") + last)}) {
    EXPECT_EQ(as<int64_t>(parse_one(ints("a", 1), message).got), (std::vector<int64_t>{2}));
  }
  EXPECT_EQ(fault_of(ints("a", 1), example(first + entry("a", ""))), ExampleFault::kMissing);
  // A name that comes twice in its entry.
  const std::string renamed = field(1, "b") + field(2, int64_feature({4})) + field(1, "a");
  EXPECT_EQ(as<int64_t>(parse_one(ints("a", 1), example(first + field(1, renamed))).got),
            (std::vector<int64_t>{4}));
  // No name is the empty name.
  EXPECT_EQ(
      as<int64_t>(parse_one(ints("", 1), example(field(1, field(2, int64_feature({5}))))).got),
      (std::vector<int64_t>{5}));
}

TEST(ExampleParser, what_nobody_knows_or_wants_is_skipped) {
  const std::string group = "\x5B\x08\x01\x63\x12\x01x\x64\x5C"s;  // group 11, in it group 12
  const std::vector<std::string> unknown = {"",
                                            varint_field(9, 300),
                                            field(9, "anything"),
                                            varint(9 << 3 | 5) + "four",
                                            varint(9 << 3 | 1) + "8 bytes!",
                                            varint_field(1, 5),
                                            varint(((uint64_t{1} << 29) - 1) << 3) + "\1",
                                            group,
                                            group + group};
  for (const std::string& skipped : unknown) {
    const std::string list = skipped + field(1, packed({1, 2})) + skipped;
    // Of another wire type than its number has: unknown, too.
    const std::string value =
        skipped + field(3, skipped == varint_field(1, 5) ? field(1, packed({1, 2})) : list) +
        skipped;
    const std::string whole = skipped + field(1, "a") + skipped + field(2, value) + skipped;
    const std::string entries = skipped + entry("nobody", "\xFF\xFF") + skipped + field(1, whole) +
                                entry("b", bytes_feature({"x"})) + skipped;
    const std::string message = skipped + example(entries) + skipped;
    const Outcome outcome = parse_one(ints("a", 2), message);
    EXPECT_EQ(as<int64_t>(outcome.got), (std::vector<int64_t>{1, 2}))
        << outcome.text << " " << skipped;
  }
}

TEST(ExampleParser, a_feature_that_is_not_there_is_its_default_or_a_failure) {
  const Features bare = {ints("a", 2),
                         floats("a", 1),
                         bytes("a", 3),
                         ragged("a", Type::kInt64),
                         ragged("a", Type::kFloat32),
                         string("a"),
                         strings("a")};
  const Features defaults = {with_default(ints("a", 2), raw<int64_t>({5, 6})),
                             with_default(floats("a", 1), raw<float>({2})),
                             with_default(bytes("a", 3), "xyz"),
                             with_default(ragged("a", Type::kInt64), raw<int64_t>({7, 8, 9})),
                             with_default(ragged("a", Type::kFloat32), ""),
                             with_default(string("a"), "text"),
                             with_default(strings("a"), "onetwo", {3, 3})};
  for (const std::string& message :
       {""s, example(""), example(entry("b", int64_feature({1}))), example(entry("a", "")),
        example(field(1, field(1, "a"))), example(entry("a", field(9, "x")))}) {
    for (size_t i = 0; i < bare.size(); ++i) {
      EXPECT_EQ(fault_of(bare[i], message), ExampleFault::kMissing);
      const Outcome outcome = parse_one(defaults[i], message);
      ASSERT_EQ(outcome.failure.fault, ExampleFault::kNone) << outcome.text;
      EXPECT_EQ(outcome.got.values, raw(defaults[i].default_value->values));
      EXPECT_EQ(outcome.got.lengths, defaults[i].default_value->lengths);
    }
  }
}

TEST(ExampleParser, an_empty_list_is_there) {
  const auto empty = [](uint32_t type) { return example(entry("a", field(type, ""))); };
  const auto empty_run = [](uint32_t type) {
    return example(entry("a", field(type, field(1, ""))));
  };
  for (uint32_t type : {2u, 3u}) {
    for (const std::string& message : {empty(type), empty_run(type)}) {
      const ExampleFeature feature = ragged("a", static_cast<Type>(type));
      const Outcome outcome = parse_one(with_default(feature, raw<int64_t>({1})), message);
      EXPECT_EQ(outcome.failure.fault, ExampleFault::kNone) << outcome.text;
      EXPECT_EQ(outcome.got.count, 0u);
      EXPECT_EQ(fault_of(type == 2 ? floats("a", 1) : ints("a", 1), message), ExampleFault::kCount);
      EXPECT_EQ(fault_of(type == 2 ? floats("a", 0) : ints("a", 0), message), ExampleFault::kNone);
    }
  }
  EXPECT_EQ(parse_one(strings("a"), empty(1)).got, GotValue{});
  EXPECT_EQ(parse_one(strings("a"), empty_run(1)).got.lengths, (std::vector<int64_t>{0}));
  EXPECT_EQ(fault_of(string("a"), empty(1)), ExampleFault::kCount);
  EXPECT_EQ(parse_one(string("a"), empty_run(1)).got, GotValue{});
  EXPECT_EQ(fault_of(bytes("a", 0), empty(1)), ExampleFault::kCount);
  EXPECT_EQ(fault_of(bytes("a", 0), empty_run(1)), ExampleFault::kNone);
}

TEST(ExampleParser, int64_may_become_int32) {
  for (Form form : {Form::kFixed, Form::kRagged}) {
    ExampleFeature feature = ints("a", 4);
    feature.form = form;
    feature.dtype = DType::kInt32;
    const std::vector<int64_t> values = {INT32_MIN, -1, 200, INT32_MAX};
    EXPECT_EQ(as<int32_t>(parse_one(feature, example(entry("a", int64_feature(values)))).got),
              (std::vector<int32_t>{INT32_MIN, -1, 200, INT32_MAX}));
    std::string singles;
    for (int64_t value : values) singles += varint_field(1, static_cast<uint64_t>(value));
    EXPECT_EQ(as<int32_t>(parse_one(feature, example(entry("a", field(3, singles)))).got),
              (std::vector<int32_t>{INT32_MIN, -1, 200, INT32_MAX}));
    singles += varint_field(1, uint64_t{1} << 40);
    EXPECT_EQ(fault_of(feature, example(entry("a", int64_feature({1, 2, 3, int64_t{1} << 31})))),
              ExampleFault::kRange);
    EXPECT_NE(fault_of(feature, example(entry("a", field(3, singles)))), ExampleFault::kNone);
  }
}

// The cached previous record never changes the result of the next one.
TEST(ExampleParser, records_may_differ_in_everything) {
  std::mt19937_64 random(1);
  auto below = [&](uint64_t n) { return random() % n; };
  const std::string long_name(60, 'n'), longer_name(100, 'm');
  const Features features = {with_default(ints("label", 1), raw<int64_t>({-7})),
                             with_default(floats("x", 3), raw<float>({1, 2, 3})),
                             with_default(bytes("raw", 5), "short"),
                             with_default(string(long_name), "long"),
                             with_default(strings(longer_name), "", {}),
                             with_default(ragged("ids", Type::kInt64), ""),
                             with_default(ragged("", Type::kFloat32), "")};
  ExampleParser parser(features);
  for (int round = 0; round < 20'000; ++round) {
    auto ints_made = [&](size_t n) {
      std::vector<int64_t> made(n);
      for (int64_t& value : made) value = static_cast<int64_t>(random() >> below(64));
      return made;
    };
    auto floats_made = [&](size_t n) {
      std::vector<float> made(n);
      for (float& value : made) value = static_cast<float>(below(1000));
      return made;
    };
    auto string_made = [&](size_t n) { return std::string(n, static_cast<char>('a' + below(26))); };
    std::vector<std::string> entries;
    auto add = [&](const std::string& name, const std::string& feature) {
      if (below(8) != 0) entries.push_back(entry(name, feature));
    };
    add("label", int64_feature(ints_made(1)));
    add("x", float_feature(floats_made(3)));
    add("raw", bytes_feature({string_made(5)}));
    add(long_name, bytes_feature({string_made(below(300))}));
    add(longer_name, bytes_feature(std::vector<std::string>(below(4), string_made(below(4)))));
    add("ids", int64_feature(ints_made(below(9))));
    add("", float_feature(floats_made(below(4))));
    add("unwanted", int64_feature(ints_made(below(3))));
    add("labex", int64_feature(ints_made(1)));
    if (below(4) == 0) std::shuffle(entries.begin(), entries.end(), random);
    std::string all;
    for (const std::string& one : entries) all += one;
    if (below(20) == 0) all += varint_field(5, 1);
    const std::string message = example(all);
    const auto want = expected(features, message);
    const auto got = parse(parser, message);
    ASSERT_EQ(got, want) << round << " " << parser.failure_text();
    ASSERT_TRUE(got);
  }
}

}  // namespace
}  // namespace penstock
