#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "penstock/io/example_wire.h"

namespace penstock {

// Collects which features tf.Examples have, from every feature of every record. One thread.
class ExampleSurvey {
 public:
  struct Feature {
    uint64_t records = 0;               // with the feature
    std::array<uint64_t, 4> of_type{};  // of these, by ExampleFeature::Type; 0: no list in it
    uint64_t least = 0, most = 0;       // values in one record; of bytes: strings
    uint64_t least_bytes = 0, most_bytes = 0;  // of bytes: all strings of a record
    uint64_t last = 0;                         // number of the last record that has it, from 1
  };
  static constexpr size_t kMaxNames = 4096;

  // The next record.
  void add(std::span<const std::byte> record);

  uint64_t examples() const { return examples_; }    // valid records with at least one feature
  uint64_t sequences() const { return sequences_; }  // of these: with lists of steps
  uint64_t others() const { return others_; }        // all other records
  // By name, at most kMaxNames. Of an invalid record, the features before the fault are counted.
  const std::map<std::string, Feature, std::less<>>& features() const { return features_; }

 private:
  bool example(wire::Span message, bool& any, bool& lists);
  bool entry(wire::Span entry);

  uint64_t examples_ = 0, sequences_ = 0, others_ = 0, record_ = 0;
  std::map<std::string, Feature, std::less<>> features_;
};

}  // namespace penstock
