#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "examples.h"
#include "penstock/io/example_parser.h"

namespace penstock {

// A feature list of these steps, and the message's part that has them.
inline std::string list_entry(const std::string& name, const std::vector<std::string>& steps) {
  std::string list;
  for (const std::string& step : steps) list += field(1, step);
  return entry(name, list);
}
inline std::string lists(const std::string& entries) { return field(2, entries); }

struct GotSteps {
  uint64_t steps = 0;
  GotValue all;  // lengths: of the steps
  bool operator==(const GotSteps&) const = default;
};
struct GotSequence {
  std::vector<GotValue> context;
  std::vector<GotSteps> lists;
  bool operator==(const GotSequence&) const = default;
};

// The expected value of a list in these parts. nullopt: a failure.
inline std::optional<GotSteps> expected_steps(const ExampleFeature& wanted,
                                              const std::vector<std::string>& parts) {
  GotSteps made;
  ExampleFeature each = wanted;
  if (each.form == Form::kRagged) each.default_value.emplace();
  if (each.form != Form::kRagged) each.default_value.reset();
  for (const std::string& part : parts) {
    const auto steps = fields_of(part);
    if (!steps) return std::nullopt;
    for (const WireField& step : *steps) {
      if (step.number != 1 || step.type != 2) continue;
      const auto value = expected(each, plain_feature({step.body}));
      if (!value) return std::nullopt;
      ++made.steps;
      made.all.values += value->values;
      made.all.count += value->count;
      if (each.form != Form::kFixed) {
        made.all.lengths.push_back(static_cast<int64_t>(value->count));
      }
    }
  }
  return made;
}

// The same of a record. The first `context` of `features` are the context's.
inline std::optional<GotSequence> expected_sequence(std::span<const ExampleFeature> features,
                                                    size_t context, std::string_view record) {
  GotSequence made;
  const auto map = plain_map(record, 2);
  if (!map) return std::nullopt;
  for (const ExampleFeature& wanted : features.subspan(context)) {
    auto found = map->find(wanted.name);
    if (found == map->end() && !wanted.default_value) return std::nullopt;
    const auto steps = found == map->end() ? GotSteps{} : expected_steps(wanted, found->second);
    if (!steps) return std::nullopt;
    made.lists.push_back(*steps);
  }
  if (context > 0) {
    auto values = expected(features.first(context), record);
    if (!values) return std::nullopt;
    made.context = *values;
  }
  return made;
}

// nullopt: a failure.
inline std::optional<GotSequence> parse(SequenceExampleParser& parser, size_t context,
                                        std::string_view bytes) {
  const ExactRecord record(bytes);
  ExampleHeap heap;
  std::vector<ExampleValue> values(context);
  std::vector<StepsValue> steps(parser.features().size() - context);
  make_rows(parser.features().first(context), values, heap);
  if (!parser.parse(record.span(), values, steps, heap)) return std::nullopt;
  GotSequence got;
  got.context = got_values(parser.features().first(context), values);
  for (size_t i = 0; i < steps.size(); ++i) {
    const size_t size = size_of(parser.features()[context + i].output());
    GotSteps& one = got.lists.emplace_back();
    one.steps = steps[i].steps;
    one.all.count = steps[i].count;
    one.all.values.assign(reinterpret_cast<const char*>(steps[i].data), steps[i].count * size);
    one.all.lengths.assign(steps[i].lengths.begin(), steps[i].lengths.end());
  }
  return got;
}

}  // namespace penstock
