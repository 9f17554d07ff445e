#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/train/gradient_parts.h"
#include "penstock/train/optimizer.h"
#include "penstock/train/parameters.h"

namespace penstock {
class FileSystem;
}

namespace penstock::train {

// What is done with a gradient that has a NaN or an infinity in it.
enum class NonFinite : uint8_t {
  kRaise,  // Error kInvalidArgument that names block and element; nothing was changed
  kSkip,   // nothing is changed, and it is counted
  kCount,  // it is applied, and counted
};

// An optimizer's state for certain parameters. Computing gradients is somebody else's affair.
//
// The same gradients in the same order give the same bits, on every machine with the same libm.
//
// Threads: any; updates are applied one after the other. Whoever reads the parameters meanwhile
// sees some floats of before and some of after. After an exception nothing was changed.
class Updater {
 public:
  struct Options {
    NonFinite non_finite = NonFinite::kRaise;
    Slab::Kind state = Slab::Kind::kPrivate;  // where the optimizer's state lives
  };

  // Error kOutOfMemory.
  Updater(Parameters parameters, Optimizer optimizer, Options options);
  Updater(Parameters parameters, Optimizer optimizer)
      : Updater(std::move(parameters), std::move(optimizer), Options()) {}

  // One update from `gradients` * scale, which are only read. False: they were not finite, and
  // skipped. Error kInvalidArgument: another layout, the parameters themselves, a scale that is not
  // finite, or see NonFinite.
  bool apply(const Slab& gradients, double scale = 1);

  // One update of some rows (axis 0) of some blocks, each block once, and of nothing else, the
  // optimizer's state included: what is not touched neither decays nor moves on. It counts as one
  // update, however many blocks it is of, also for Adam's correction of the bias; clipping is by
  // the norm of all parts together. Errors as apply; kNotFound: no such block.
  bool apply_parts(std::span<const GradientPart> parts, double scale = 1);
  // Throws what apply_parts() would; changes nothing.
  void check(std::span<const GradientPart> parts);
  // The same of one block. `values`: rows.size() rows, one after the other.
  bool apply_rows(std::string_view block, std::span<const int64_t> rows,
                  std::span<const float> values, double scale = 1);

  const Parameters& parameters() const { return parameters_; }
  const Optimizer& optimizer() const { return optimizer_; }
  // Slabs of the parameters' layout, in the order of the formula: m and v of Adam. Not while
  // another thread applies.
  const std::vector<Slab>& state() const { return state_; }

  uint64_t step() const;        // updates applied with this state; the next one's step
  uint64_t skipped() const;     // gradients that were not finite and not applied
  uint64_t non_finite() const;  // gradients that were not finite
  double norm() const;  // Euclidean, of the last gradient that was applied, scaled, unclipped
  double lr() const;    // of the next update

  // Goes on as after `step` updates; state() and the parameters are the caller's to set.
  void set_step(uint64_t step);

 private:
  // Whether to go on with a gradient of this sum of squares; sets norm_ then.
  template <typename Describe>
  bool accept(double squares, double scale, Describe describe);
  void advance();
  Error not_finite(const std::string& what) const;

  // weight_files.h
  friend void save(const Updater& updater, const std::string& path, FileSystem& files);
  friend void load(Updater& updater, const std::string& path, FileSystem& files);

  const Parameters parameters_;
  const Optimizer optimizer_;
  const Options options_;
  std::vector<Slab> state_;
  float* states_[2] = {};

  mutable std::mutex mutex_;
  uint64_t step_ = 0, skipped_ = 0, non_finite_ = 0;
  double norm_ = 0;
  GradientParts parts_;
};

}  // namespace penstock::train
