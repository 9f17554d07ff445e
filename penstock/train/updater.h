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
#include "penstock/train/slab.h"

namespace penstock {
class FileSystem;
}

namespace penstock::train {

// What to do with a gradient that has a NaN or an infinity.
enum class NonFinite : uint8_t {
  kRaise,  // Error kInvalidArgument that names block and element; nothing is changed
  kSkip,   // nothing is changed; counted in skipped()
  kCount,  // it is applied; counted in non_finite()
};

// An optimizer with its state for certain parameters. Applies gradients, which the caller computes.
//
// The same gradients in the same order give the same bits, on every machine with the same libm.
//
// Threads: any; updates are applied one after the other. A thread that reads the parameters during
// an update sees some old and some new floats. After an exception nothing was changed.
class Updater {
 public:
  struct Options {
    NonFinite non_finite = NonFinite::kRaise;
    Slab::Kind state = Slab::Kind::kPrivate;  // memory of the optimizer's state
  };

  // Error kOutOfMemory.
  Updater(Parameters parameters, Optimizer optimizer, Options options);
  Updater(Parameters parameters, Optimizer optimizer)
      : Updater(std::move(parameters), std::move(optimizer), Options()) {}
  // With existing state slabs, whose floats are kept, such as windows of one slab. Error
  // kInvalidArgument: another number of slabs than the formula's, or another layout.
  Updater(Parameters parameters, Optimizer optimizer, NonFinite non_finite,
          std::vector<Slab> state);

  // Applies one update from `gradients` * scale. Only reads the gradients. False: not finite, and
  // skipped. Error kInvalidArgument: another layout, the parameters themselves, a scale that is not
  // finite; see also NonFinite.
  bool apply(const Slab& gradients, double scale = 1);

  // Applies one update to some rows (axis 0) of some blocks, each block at most once. Everything
  // else, the optimizer's state included, is untouched and does not decay. It is one update for any
  // number of blocks, also for Adam's bias correction; clipping uses the norm of all parts
  // together. Errors as apply(); kNotFound: no such block.
  bool apply_parts(std::span<const GradientPart> parts, double scale = 1);
  // Throws the errors of apply_parts(); changes nothing.
  void check(std::span<const GradientPart> parts);
  // apply_parts() for rows of one block. `values`: rows.size() rows, one after the other.
  bool apply_rows(std::string_view block, std::span<const int64_t> rows,
                  std::span<const float> values, double scale = 1);

  const Parameters& parameters() const { return parameters_; }
  const Optimizer& optimizer() const { return optimizer_; }
  // State slabs of the parameters' layout, in the formula's order: m and v for Adam. REQUIRED: no
  // thread applies meanwhile.
  const std::vector<Slab>& state() const { return state_; }

  uint64_t step() const;        // updates applied with this state
  uint64_t skipped() const;     // gradients that were not finite and not applied
  uint64_t non_finite() const;  // all gradients that were not finite
  double norm() const;          // Euclidean norm of the last applied gradient: scaled, not clipped
  double lr() const;            // of the next update

  // Continues as after `step` updates. The caller sets state() and the parameters.
  void set_step(uint64_t step);

 private:
  // Whether to apply a gradient with this sum of squares; if so, sets norm_.
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
