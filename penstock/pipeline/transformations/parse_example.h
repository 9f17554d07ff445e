#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/io/example_features.h"
#include "penstock/pipeline/element/chunk.h"
#include "penstock/pipeline/element/element.h"
#include "penstock/pipeline/element/given.h"

namespace penstock {

// Shared by parse_example and parse_sequence_example.

// The leaf that is parsed, and the names of the leaves that replace it. A byte string in a dict or
// tuple is replaced by a dict of its features: their names have its name and '/' as a prefix. An
// element that is just a byte string is replaced as a whole. Immutable.
class RecordField {
 public:
  // `operation`: the name in errors. `field`: the leaf's name; empty: the only byte string. Error
  // kInvalidArgument: the name is not UTF-8.
  RecordField(const char* operation, std::string field)
      : operation_(operation), field_(utf8_name(std::move(field), operation)) {}

  // "parse_example" or "parse_example(record)".
  std::string title() const;
  // Error kInvalidArgument: no such leaf; the leaf is not a byte string; no or several byte
  // strings.
  size_t leaf(const ElementSpec& in) const;
  // Errors as of leaf(), or two leaves of one name.
  SpecRef result(const ElementSpec& in, const SpecRef& parsed) const;
  // As Op::passes: all other leaves pass through.
  std::vector<std::optional<size_t>> passes(const ElementSpec& in, size_t parsed_leaves) const;

 private:
  const char* operation_;
  std::string field_;
};

// The leaves of a parsed feature; see parse_example.
std::vector<Leaf> leaves_of(const ExampleFeature& feature);

// Writes the parsed features of records into the leaves of a chunk. One thread.
class ExampleColumns : public ExampleMemory {
 public:
  // `first`: the leaf of the first feature.
  ExampleColumns(std::span<const ExampleFeature> features, uint32_t first, Scratch& scratch);

  // Must be called before the first row, `row`, of a chunk.
  void begin(Chunk& out, uint32_t row);
  // Where the parser writes the next row's values.
  std::span<ExampleValue> next();
  // Makes views of the values that the parser left in the record.
  void give(Chunk& out, uint32_t row);

  // Sets a row of a variable leaf as a view; misaligned values are copied.
  void view(Chunk& out, size_t leaf, uint32_t row, const std::byte* data, size_t value_bytes,
            uint64_t count, std::span<const int64_t> shape);
  // The leaf after the last one of these features.
  uint32_t end() const { return end_; }

  std::byte* take(size_t bytes) override { return scratch_.take(bytes); }

 private:
  struct Fixed {
    uint32_t feature, leaf;
    std::byte* next;  // the row to write next
    uint64_t stride;
  };
  struct Variable {
    uint32_t feature, leaf;
    bool strings;
    size_t value_bytes;
  };

  std::vector<ExampleValue> values_;  // by feature
  std::vector<Fixed> fixed_;
  std::vector<Variable> variable_;
  uint32_t end_;
  Scratch& scratch_;
};

}  // namespace penstock
