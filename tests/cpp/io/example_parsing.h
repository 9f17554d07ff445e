#pragma once

// Declared features, and reading one of them from one record: for the tests of ExampleParser.

#include <gtest/gtest.h>

#include "examples.h"
#include "penstock/io/example_parser.h"

namespace penstock {

inline ExampleFeature ints(const std::string& name, uint64_t count) {
  return {.name = name, .type = Type::kInt64, .form = Form::kFixed, .count = count};
}
inline ExampleFeature floats(const std::string& name, uint64_t count) {
  return {.name = name, .type = Type::kFloat32, .form = Form::kFixed, .count = count};
}
inline ExampleFeature bytes(const std::string& name, uint64_t count) {
  return {.name = name, .type = Type::kBytes, .form = Form::kFixed, .count = count};
}
inline ExampleFeature ragged(const std::string& name, Type type) {
  return {.name = name, .type = type, .form = Form::kRagged};
}
inline ExampleFeature string(const std::string& name) { return {.name = name}; }
inline ExampleFeature strings(const std::string& name) {
  return {.name = name, .form = Form::kStrings};
}
inline ExampleFeature with_default(ExampleFeature feature, const std::string& values,
                                   std::vector<int64_t> lengths = {}) {
  const auto span = std::as_bytes(std::span(values));
  feature.default_value = {{span.begin(), span.end()}, std::move(lengths)};
  return feature;
}

// One feature of one record.
struct Outcome {
  ExampleFailure failure;
  std::string text;
  GotValue got;
};
inline Outcome parse_one(const ExampleFeature& feature, const std::string& record) {
  ExampleParser parser({feature});
  auto got = parse(parser, record);
  if (got) return {{}, "", got->front()};
  return {parser.failure(), parser.failure_text(), {}};
}
inline ExampleFault fault_of(const ExampleFeature& feature, const std::string& record) {
  return parse_one(feature, record).failure.fault;
}
inline std::vector<int64_t> ints_of(const std::string& feature) {
  const Outcome outcome = parse_one(ragged("a", Type::kInt64), example(entry("a", feature)));
  EXPECT_EQ(outcome.failure.fault, ExampleFault::kNone) << outcome.text;
  return as<int64_t>(outcome.got);
}
inline std::vector<float> floats_of(const std::string& feature) {
  const Outcome outcome = parse_one(ragged("a", Type::kFloat32), example(entry("a", feature)));
  EXPECT_EQ(outcome.failure.fault, ExampleFault::kNone) << outcome.text;
  return as<float>(outcome.got);
}

}  // namespace penstock
