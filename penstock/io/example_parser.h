#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/io/example_decoder.h"
#include "penstock/io/example_features.h"
#include "penstock/io/example_wire.h"

namespace penstock {

// Parses wanted features from the bytes of a tf.Example; docs/formats.md says which bytes are
// accepted. Construct one parser for many records: parsing allocates nothing and, for records that
// resemble each other, costs little more than copying their values. One thread.
class ExampleParser {
 public:
  // Error kInvalidArgument: as check().
  explicit ExampleParser(std::vector<ExampleFeature> features);

  std::span<const ExampleFeature> features() const { return features_; }

  // True: each feature's value is in its row, or where `values` points. The value stays valid as
  // long as `record`, the memory taken from `memory`, and the parser. False: see failure(); rows
  // and values may be partly written. Exceptions of memory.take() pass through.
  // REQUIRED: one of `values` for each feature, in the same order.
  bool parse(std::span<const std::byte> record, std::span<ExampleValue> values,
             ExampleMemory& memory);

  // The failure of the last parse() that returned false.
  const ExampleFailure& failure() const { return failure_; }
  std::string failure_text() const { return to_string(failure_, features_); }

 private:
  ExampleFault find(wire::Span record, wire::Pointer& at);

  const std::vector<ExampleFeature> features_;
  std::vector<ExampleDecoder> decoders_;
  ExampleEntries entries_;
  ExampleFailure failure_;
};

// One feature list of one record: the values of its steps, one after the other. `data` and
// `lengths` stay valid as long as the record, the memory taken, and the parser.
struct StepsValue {
  uint64_t steps = 0;
  const std::byte* data = nullptr;   // of any alignment, never null
  uint64_t count = 0;                // values of `data`, all steps together
  std::span<const int64_t> lengths;  // of each step, in values; empty for kFixed
};

// Parses wanted features from the bytes of a tf.SequenceExample: those of its context like
// ExampleParser, and lists of steps, each of which is one feature. docs/formats.md says which bytes
// are accepted. Construct one parser for many records. One thread.
class SequenceExampleParser {
 public:
  // A list's feature describes each step: kFixed, kRagged or kString. Its default can only be an
  // empty list. `context` or `lists` may be empty. Error kInvalidArgument: as check().
  SequenceExampleParser(std::vector<ExampleFeature> context, std::vector<ExampleFeature> lists);

  // The features of the context, then the lists.
  std::span<const ExampleFeature> features() const { return features_; }

  // Like ExampleParser::parse().
  // REQUIRED: one of `values` for each feature of the context, one of `steps` for each list.
  bool parse(std::span<const std::byte> record, std::span<ExampleValue> values,
             std::span<StepsValue> steps, ExampleMemory& memory);

  // The failure of the last parse() that returned false; its `feature` is an index into features().
  const ExampleFailure& failure() const { return failure_; }
  std::string failure_text() const { return to_string(failure_, features_); }

 private:
  ExampleFault find(wire::Span record, wire::Pointer& at);
  ExampleFault measure(const ExampleFeature& list, wire::Span entry, StepsValue& value,
                       ExampleErrorPlace& place);
  ExampleFault decode(const ExampleFeature& list, wire::Span entry, StepsValue& value,
                      ExampleMemory& memory, ExampleErrorPlace& place);

  const std::vector<ExampleFeature> features_;
  const size_t context_features_;
  // Parses the context: a SequenceExample is an Example with an unknown field.
  std::optional<ExampleParser> context_;
  ExampleEntries entries_;  // of the lists
  uint64_t step_ = 0;       // that is being measured or decoded
  ExampleFailure failure_;
};

}  // namespace penstock
