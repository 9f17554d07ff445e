#pragma once

#include <cstdint>

#include "penstock/io/example_contents.h"
#include "penstock/io/example_entries.h"
#include "penstock/io/example_features.h"

namespace penstock {

// Takes the values of one wanted feature out of what ExampleEntries found. Immutable.
class ExampleDecoder {
 public:
  // REQUIRED: check() has seen the feature.
  explicit ExampleDecoder(const ExampleFeature& feature);

  // kMissing where there is no list.
  ExampleFault decode(const ExampleEntries::Found& entry, ExampleValue& value,
                      ExampleMemory& memory, ExampleTrouble& trouble) const;

 private:
  enum class Kind : uint8_t { kRow, kVarintRow, kFloats, kVarints, kString, kStrings };

  ExampleFault whole(wire::Span run, ExampleValue& value, ExampleMemory& memory,
                     ExampleTrouble& trouble) const;
  ExampleFault in_pieces(wire::Span entry, const ExampleContents& contents, ExampleValue& value,
                         ExampleMemory& memory, ExampleTrouble& trouble) const;
  ExampleFault wrong_count(wire::Bytes at, uint64_t count, ExampleTrouble& trouble) const;
  ExampleFault varints(wire::Span run, std::byte* to, uint64_t count,
                       ExampleTrouble& trouble) const;

  Kind kind_;
  uint8_t type_;  // ExampleFeature::Type
  bool narrow_;   // int64 become int32
  uint64_t value_bytes_;
  uint64_t count_;  // of a row
  uint64_t row_bytes_;
};

}  // namespace penstock
