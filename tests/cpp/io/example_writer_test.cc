#include "penstock/io/example_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "bytes.h"
#include "examples.h"
#include "penstock/base/error.h"

namespace penstock {
namespace {

using namespace std::string_literals;
using Strings = std::vector<std::span<const std::byte>>;

Strings spans_of(const std::vector<std::string>& texts) {
  Strings spans;
  for (const std::string& text : texts) spans.push_back(bytes_of(text));
  return spans;
}
std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Written down byte by byte from the specification.
TEST(ExampleWriter, writes_the_bytes_that_protobuf_writes) {
  ExampleWriter writer;
  writer.int64("a", std::vector<int64_t>{1, 300, -1});
  writer.bytes_list("bc", spans_of({"hi", "!"}));
  writer.float32("f", std::vector<float>{1});
  writer.bytes("z", bytes_of(""));
  // clang-format off
  EXPECT_EQ(text_of(writer.finish()),
            "\x0A\x43"                                  // Example.features, 67 bytes
            "\x0A\x16\x0A\x01" "a" "\x12\x11"           // an entry: "a", Feature of 17 bytes
            "\x1A\x0F\x0A\x0D\x01\xAC\x02"              // int64_list, packed: 1, 300
            "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01"  // and -1
            "\x0A\x0F\x0A\x02" "bc" "\x12\x09"          // "bc"
            "\x0A\x07\x0A\x02" "hi" "\x0A\x01" "!"      // bytes_list: "hi", "!"
            "\x0A\x0D\x0A\x01" "f" "\x12\x08"           // "f"
            "\x12\x06\x0A\x04\x00\x00\x80\x3F"          // float_list, packed: 1.0
            "\x0A\x09\x0A\x01" "z" "\x12\x04"           // "z"
            "\x0A\x02\x0A\x00"s);                       // bytes_list: ""
  // clang-format on
}

TEST(ExampleWriter, a_sequence_is_context_and_lists_of_steps) {
  SequenceExampleWriter writer;
  writer.context().int64("n", std::vector<int64_t>{2});
  writer.list("x");
  writer.float32(std::vector<float>{1});
  writer.int64(std::vector<int64_t>{});
  writer.list("e");
  // clang-format off
  EXPECT_EQ(text_of(writer.finish()),
            "\x0A\x0C\x0A\x0A\x0A\x01" "n" "\x12\x05"   // SequenceExample.context: "n"
            "\x1A\x03\x0A\x01\x02"                      // int64_list: 2
            "\x12\x1C"                                  // feature_lists, 28 bytes
            "\x0A\x13\x0A\x01" "x" "\x12\x0E"           // "x": FeatureList of 14 bytes
            "\x0A\x08\x12\x06\x0A\x04\x00\x00\x80\x3F"  // float_list: 1.0
            "\x0A\x02\x1A\x00"                          // int64_list of nothing
            "\x0A\x05\x0A\x01" "e" "\x12\x00"s);        // "e": a list without steps
  // clang-format on
}

TEST(ExampleWriter, messages_follow_one_another) {
  ExampleWriter writer;
  EXPECT_TRUE(writer.finish().empty());
  for (size_t length : {3, 300, 3, 70'000, 0}) {
    const std::string text(length, 'x');
    writer.bytes("a", bytes_of(text));
    EXPECT_EQ(text_of(writer.finish()), example(entry("a", bytes_feature({text}))));
  }
  EXPECT_TRUE(writer.finish().empty());

  SequenceExampleWriter sequences;
  EXPECT_TRUE(sequences.finish().empty());
  EXPECT_THROW(sequences.bytes(bytes_of("x")), Error);
  const std::string list = field(2, entry("x", field(1, bytes_feature({"y"}))));
  for (int i = 0; i < 2; ++i) {
    sequences.list("x");
    sequences.bytes(bytes_of("y"));
    EXPECT_EQ(text_of(sequences.finish()), list);
    EXPECT_THROW(sequences.int64(std::vector<int64_t>{1}), Error) << "the list is over";
    sequences.context().bytes("a", bytes_of("b"));
    EXPECT_EQ(text_of(sequences.finish()), example(entry("a", bytes_feature({"b"}))));
  }
}

// Random features: the bytes are those of the plain encoder, and the parser returns the features.
TEST(ExampleWriter, what_is_written_is_read) {
  std::mt19937_64 random(7);
  auto below = [&](uint64_t n) { return random() % n; };
  ExampleWriter writer;
  for (int round = 0; round < 3000; ++round) {
    std::vector<ExampleFeature> features;
    std::vector<GotValue> written;
    std::string entries;
    const uint64_t count = 1 + below(8);
    for (uint64_t i = 0; i < count; ++i) {
      ExampleFeature feature{.name = std::string(below(50), 'n') + std::to_string(i),
                             .type = static_cast<Type>(1 + below(3))};
      const uint64_t length = below(10) == 0 ? below(500) : below(5);
      GotValue made;
      if (feature.type == Type::kBytes) {
        std::vector<std::string> values(below(2) == 0 ? 1 : length);
        for (std::string& value : values) {
          value = std::string(below(10) == 0 ? below(300) : below(4), static_cast<char>(random()));
          made.values += value;
        }
        feature.form = values.size() != 1 ? Form::kStrings : static_cast<Form>(below(3) * 3 % 4);
        if (feature.form == Form::kStrings) {
          for (const std::string& value : values) {
            made.lengths.push_back(static_cast<int64_t>(value.size()));
          }
        }
        feature.count = made.values.size();
        values.size() == 1 && below(2) == 0 ? writer.bytes(feature.name, bytes_of(values[0]))
                                            : writer.bytes_list(feature.name, spans_of(values));
        entries += entry(feature.name, bytes_feature(values));
      } else if (feature.type == Type::kFloat32) {
        std::vector<float> values(length);
        for (float& value : values) value = static_cast<float>(below(1000)) / 7;
        made.values = raw(values);
        writer.float32(feature.name, values);
        entries += entry(feature.name, values.empty() ? field(2, "") : float_feature(values));
      } else {
        std::vector<int64_t> values(length);
        for (int64_t& value : values) value = static_cast<int64_t>(random() >> below(64));
        made.values = raw(values);
        writer.int64(feature.name, values);
        entries += entry(feature.name, values.empty() ? field(3, "") : int64_feature(values));
      }
      if (feature.type != Type::kBytes) {
        feature.form = below(2) == 0 ? Form::kFixed : Form::kRagged;
        feature.count = length;
      }
      made.count = made.values.size() / size_of(feature.output());
      features.push_back(feature);
      written.push_back(made);
    }
    const std::string message = text_of(writer.finish());
    ASSERT_EQ(message, example(entries)) << round;
    std::vector<size_t> order(features.size());  // asked for in another order than written
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    std::vector<ExampleFeature> wanted;
    std::vector<GotValue> expected;
    for (size_t i : order) {
      wanted.push_back(features[i]);
      expected.push_back(written[i]);
    }
    ExampleParser parser(wanted);
    const auto got = parse(parser, message);
    ASSERT_TRUE(got) << round << " " << parser.failure_text();
    ASSERT_EQ(*got, expected) << round;
    ASSERT_EQ(parse(parser, message), got) << "what is remembered changed it";
  }
}

}  // namespace
}  // namespace penstock
