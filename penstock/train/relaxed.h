#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "penstock/train/kernels.h"

// Floats that several threads or processes read and write at the same time with no lock: Hogwild's
// (Niu et al. 2011). Every access is a relaxed atomic load or store, never a read-modify-write. So
// it is no data race: whoever reads finds for each float a value that somebody wrote, and of two
// who change a float at once, one change may be lost. Nothing orders one float after another.
namespace penstock::train::relaxed {

inline float load(const float& from) {
  return std::atomic_ref<float>(const_cast<float&>(from)).load(std::memory_order_relaxed);
}
inline void store(float& to, float value) {
  std::atomic_ref<float>(to).store(value, std::memory_order_relaxed);
}

// Sum of weights[at[i]] * values[i]: a sparse row times a vector that others write to.
inline float dot(const float* weights, std::span<const int32_t> at, const float* values) {
  float sum = 0;
  for (size_t i = 0; i < at.size(); ++i) sum += load(weights[at[i]]) * values[i];
  return sum;
}
// weights[at[i]] += factor * values[i].
inline void add(float* weights, std::span<const int32_t> at, const float* values, float factor) {
  for (size_t i = 0; i < at.size(); ++i) {
    float& weight = weights[at[i]];
    store(weight, load(weight) + factor * values[i]);
  }
}

// A copy of floats that others write to, into the caller's own, as many as `to` has.
void read(const float* from, std::span<float> to);

// kernels::update, with the same bits if nobody else writes meanwhile, for weights that others read
// and write; if `shares_state`, for states that they do. Gradients are the caller's own, and so is
// `copy`, which gets the new weights, unless it is nullptr: by the way, while the lines of the
// cache that others changed are here to be written to. A read later would fetch them once more.
void update(const kernels::Pass& pass, float* weights, const float* gradients, float* state0,
            float* state1, size_t n, bool shares_state, float* copy = nullptr);

// For the floats of `common`: where it is not `base` any more, common += share * (own - base), but
// not beyond common and own, else common = own; then own = base = common. Others write to `own`
// meanwhile, and what they write stays; others read `common`; `base` is the caller's own.
void merge(std::span<float> common, float* own, float* base, float share);

}  // namespace penstock::train::relaxed
