#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/train/gradient_parts.h"
#include "penstock/train/slab.h"

namespace penstock::train {

// A tower as its step sees it: weights, and a place for the gradient of the mean over its batch.
//
// Threads: the step's thread, while it runs. The weights do not change meanwhile; a step only reads
// them.
class Tower {
 public:
  Tower(Parameters parameters, Slab gradients, size_t number)
      : parameters_(std::move(parameters)), gradients_(std::move(gradients)), number_(number) {}
  // Without parameters() and gradients(): they are not in slabs.
  explicit Tower(size_t number) : number_(number) {}

  size_t number() const { return number_; }
  uint64_t step() const { return step_; }  // finished steps of this tower, in all runs
  const Parameters& parameters() const { return *parameters_; }

  // This tower's own; zero when a step begins.
  const Slab& gradients() const { return *gradients_; }
  // Alternative: adds the gradient of some rows of a block, in any order; repeated rows are added
  // up. The values are copied. In a round either all towers give rows or none does; the update then
  // changes these rows only, and gradients() must stay zero. Rows of a batch of weight 0 are
  // ignored. Error kNotFound: no such block; kInvalidArgument as Updater::apply_rows.
  void add_rows(std::string_view block, std::span<const int64_t> rows,
                std::span<const float> values);

  // Declares that this tower gives rows in this round, even if it never calls add_rows().
  void use_rows() { gives_rows_ = true; }

  // For the report: bytes of gradients that had to be copied for a framework.
  void note_copied(uint64_t bytes) { copied_ += bytes; }

 private:
  friend class Towers;
  struct Rows {
    std::string block;
    std::vector<int64_t> rows;
    std::vector<float> values;
  };

  void clear();

  std::optional<Parameters> parameters_;
  std::optional<Slab> gradients_;
  size_t number_;
  uint64_t step_ = 0;
  double weight_ = 0;        // of its batch in this round
  bool gives_rows_ = false;  // in this round
  uint64_t copied_ = 0;      // in this run
  std::vector<Rows> rows_;   // the first used_ are in use; the others keep their memory
  size_t used_ = 0;
  RowGradients checked_;
};

// Adds up the gradients of several towers into the first one's, and zeroes the others':
//   gradients[0] = sum of weights[i] * gradients[i]
// The sum is a tree over tower numbers (0 + 1, 2 + 3, then 0 + 2, ...), so its bits depend on the
// values and the number of towers, but neither on timing nor on how the floats are cut into ranges.
// A tower of weight 0 does not contribute, whatever its gradients are. A weight of 1 multiplies
// nothing.
//
// [begin, end): floats of the slabs; threads may process different ranges at the same time. Error
// kInvalidArgument: not one weight for each tower, layouts that differ, a range outside them.
void add_towers(std::span<const Slab> gradients, std::span<const float> weights, size_t begin,
                size_t end);

}  // namespace penstock::train
