#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "penstock/io/example_decoder.h"
#include "penstock/io/example_entries.h"
#include "penstock/io/example_features.h"

namespace penstock {

// Takes wanted features out of the bytes of a tf.Example. What is accepted is written in
// docs/formats.md. Made once for many records, which cost no allocation and, where they look like
// the one before, little more than their values' copies. One thread.
class ExampleParser {
 public:
  // Error kInvalidArgument as check()'s.
  explicit ExampleParser(std::vector<ExampleFeature> features);

  std::span<const ExampleFeature> features() const { return features_; }

  // True: each feature's value is written to its row, or lies where `values` says, as long as
  // `record`, what was taken of `memory`, and the parser live. False: failure() says why, and rows
  // and values may be half done. Throws what memory.take() throws.
  // REQUIRED: one of `values` for each feature, in their order.
  bool parse(std::span<const std::byte> record, std::span<ExampleValue> values,
             ExampleMemory& memory);

  // Of the last parse() that failed.
  const ExampleFailure& failure() const { return failure_; }
  std::string failure_text() const { return to_string(failure_, features_); }

 private:
  ExampleFault find(wire::Span record, wire::Bytes& at);

  const std::vector<ExampleFeature> features_;
  std::vector<ExampleDecoder> decoders_;
  ExampleEntries entries_;
  ExampleFailure failure_;
};

}  // namespace penstock
