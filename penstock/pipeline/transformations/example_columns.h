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

// The leaf of an element that is parsed, and in whose place what was parsed stands: of a byte
// string in a dict or tuple a dict of its features, whose leaves have its name and a '/' in front.
// An element that is nothing but the byte string is replaced as a whole. Immutable.
class RecordField {
 public:
  // `operation`: in errors. `field`: the leaf's name; empty: the only byte string that there is.
  // Error kInvalidArgument: it is not UTF-8.
  RecordField(const char* operation, std::string field)
      : operation_(operation), field_(name_of_user(std::move(field), operation)) {}

  // "parse_example", "parse_example(record)".
  std::string title() const;
  // Error kInvalidArgument: there is no such leaf, it is no byte string, or there is not just one.
  size_t leaf(const ElementSpec& in) const;
  // Error as of leaf(), and two leaves of one name.
  SpecRef result(const ElementSpec& in, const SpecRef& parsed) const;
  // As Op::passes: all other leaves are.
  std::vector<std::optional<size_t>> passes(const ElementSpec& in, size_t parsed_leaves) const;

 private:
  const char* operation_;
  std::string field_;
};

// The leaves that a feature becomes; see parse_example.
std::vector<Leaf> leaves_of(const ExampleFeature& feature);

// Features of records on their way into a chunk's leaves. One thread.
class ExampleColumns : public ExampleMemory {
 public:
  // `first`: the first feature's leaf.
  ExampleColumns(std::span<const ExampleFeature> features, uint32_t first, Scratch& scratch);

  // Before rows from `row` on.
  void begin(Chunk& out, uint32_t row);
  // Where the next row's values are to be written, for a parser.
  std::span<ExampleValue> next();
  // What the parser found elsewhere becomes views of that row.
  void give(Chunk& out, uint32_t row);

  // A variable leaf's row; copied to where its values are in their places if they are not.
  void view(Chunk& out, size_t leaf, uint32_t row, const std::byte* data, size_t value_bytes,
            uint64_t count, std::span<const int64_t> shape);
  // The first leaf behind those of these features.
  uint32_t end() const { return end_; }

  std::byte* take(size_t bytes) override { return scratch_.take(bytes); }

 private:
  struct Fixed {
    uint32_t feature, leaf;
    std::byte* next;  // row to be written
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
