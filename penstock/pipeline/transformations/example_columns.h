#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "penstock/io/example_features.h"
#include "penstock/pipeline/element/chunk.h"
#include "penstock/pipeline/stages/op.h"

namespace penstock {

// What parse_example and parse_sequence_example have in common.

// The leaves that a feature becomes; see ParseExampleOp.
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
