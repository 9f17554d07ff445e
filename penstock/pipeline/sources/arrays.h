#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "penstock/memory/example.h"
#include "penstock/pipeline/element/block.h"
#include "penstock/pipeline/node.h"

namespace penstock {

// The stage of arrays, for whoever copies its elements straight into a batch. Any thread.
class MemoryRows {
 public:
  virtual ~MemoryRows() = default;
  // Whether rows lie in memory as elements have them.
  virtual bool as_they_are() const = 0;
  // Copies the elements at `positions`, any number of them, to rows row, row + 1, ... of a block of
  // the stage's spec. REQUIRED: as_they_are(); each position is below the length.
  virtual void copy(std::span<const uint64_t> positions, const BlockLayout& layout,
                    std::byte* block, uint64_t row) const = 0;
};

// Equally long arrays: element i is row i of each, a leaf by its name. They are neither copied nor
// written to, may be read-only and have any strides, and must not change while they are fed.
class ArraysNode : public Node {
 public:
  // `nest`: ElementSpec::nest() of the elements. `reversed`: by array, whether its numbers stand in
  // the other byte order than the machine's, which elements have; empty: none does. `form`: what
  // the title says of an element; empty: its spec. Error kInvalidArgument: no arrays, one without
  // axes, lengths that differ.
  explicit ArraysNode(Example columns, std::string nest = {}, std::vector<bool> reversed = {},
                      std::string form = {});

  std::string title() const override;
  Built build(std::vector<Built> inputs, Builder& builder) const override;

 private:
  Example columns_;
  std::vector<bool> reversed_;
  SpecRef spec_;
  std::string form_;
};

}  // namespace penstock
