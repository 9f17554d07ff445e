#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/train/parameters.h"
#include "penstock/train/row_gradients.h"

namespace penstock::train {

// What a tower's step sees beside its batch, and where it leaves the gradient of the mean over it.
//
// Threads: a step's, while it runs. The weights do not change meanwhile, and are only read.
class Tower {
 public:
  Tower(Parameters parameters, Slab gradients, size_t number)
      : parameters_(std::move(parameters)), gradients_(std::move(gradients)), number_(number) {}

  size_t number() const { return number_; }
  uint64_t step() const { return step_; }  // how many this tower has finished, in all runs
  const Parameters& parameters() const { return parameters_; }

  // This tower's own, zero when a step begins.
  const Slab& gradients() const { return gradients_; }
  // Instead: gradients of some rows of a block, in any order; rows that come twice are added up.
  // The values are copied. All towers of a round give rows, or none does; the round's update is
  // then of these rows only, and gradients() must stay zero. Rows of a batch of weight 0 are
  // ignored. Error kNotFound: no such block; kInvalidArgument as Updater::apply_rows.
  void add_rows(std::string_view block, std::span<const int64_t> rows,
                std::span<const float> values);

  // This tower gives rows in this round, even if add_rows() is not called.
  void use_rows() { gives_rows_ = true; }

  // For the report: bytes of gradients that a framework could not leave in place.
  void note_copied(uint64_t bytes) { copied_ += bytes; }

 private:
  friend class Towers;
  struct Rows {
    std::string block;
    std::vector<int64_t> rows;
    std::vector<float> values;
  };

  void clear();

  Parameters parameters_;
  Slab gradients_;
  size_t number_;
  uint64_t step_ = 0;
  double weight_ = 0;        // of its batch in this round
  bool gives_rows_ = false;  // in this round
  uint64_t copied_ = 0;      // in this run
  std::vector<Rows> rows_;   // the first used_; the others keep their memory
  size_t used_ = 0;
  RowGradients checked_;
};

}  // namespace penstock::train
