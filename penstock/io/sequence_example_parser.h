#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/io/example_contents.h"
#include "penstock/io/example_entries.h"
#include "penstock/io/example_features.h"
#include "penstock/io/example_parser.h"

namespace penstock {

// One feature list of one record: its steps' values one after the other. `data` and `lengths` hold
// as long as the record, what was taken of the memory, and the parser live.
struct StepsValue {
  uint64_t steps = 0;
  const std::byte* data = nullptr;   // of any alignment, never null
  uint64_t count = 0;                // values of `data`, all steps together
  std::span<const int64_t> lengths;  // of each step, in values; none for kFixed, all are alike
};

// Takes wanted features out of the bytes of a tf.SequenceExample: those of its context as
// ExampleParser does, and lists of steps, each of which is one feature. What is accepted is written
// in docs/formats.md. Made once for many records. One thread.
class SequenceExampleParser {
 public:
  // A list's feature says what each step is: kFixed, kRagged or kString; its default can only be
  // that a list that is not there has no steps. Either may be empty.
  // Error kInvalidArgument as check()'s.
  SequenceExampleParser(std::vector<ExampleFeature> context, std::vector<ExampleFeature> lists);

  // The features of the context, then the lists.
  std::span<const ExampleFeature> features() const { return features_; }

  // As ExampleParser::parse().
  // REQUIRED: one of `values` for each feature of the context, one of `steps` for each list.
  bool parse(std::span<const std::byte> record, std::span<ExampleValue> values,
             std::span<StepsValue> steps, ExampleMemory& memory);

  // Of the last parse() that failed; its `feature` counts as features() does.
  const ExampleFailure& failure() const { return failure_; }
  std::string failure_text() const { return to_string(failure_, features_); }

 private:
  ExampleFault find(wire::Span record, wire::Bytes& at);
  ExampleFault measure(const ExampleFeature& list, wire::Span entry, StepsValue& value,
                       ExampleTrouble& trouble);
  ExampleFault decode(const ExampleFeature& list, wire::Span entry, StepsValue& value,
                      ExampleMemory& memory, ExampleTrouble& trouble);

  const std::vector<ExampleFeature> features_;
  const size_t context_features_;
  // Of the context: to it a SequenceExample is an Example with a field that it does not know.
  std::optional<ExampleParser> context_;
  ExampleEntries entries_;  // of the lists
  uint64_t step_ = 0;       // that is being measured or decoded
  ExampleFailure failure_;
};

}  // namespace penstock
