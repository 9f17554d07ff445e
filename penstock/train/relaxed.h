#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "penstock/train/kernels.h"

// Floats that several threads or processes read and write at the same time with no lock: Hogwild's
// (Niu et al. 2011). Every access is a relaxed atomic load or store, except in merge() never a
// read-modify-write. So there is no data race: a reader gets for each float a value that some
// thread wrote; of two concurrent changes of a float one may be lost. There is no order between
// floats.
namespace penstock::train::relaxed {

inline float load(const float& from) {
  return std::atomic_ref<float>(const_cast<float&>(from)).load(std::memory_order_relaxed);
}
inline void store(float& to, float value) {
  std::atomic_ref<float>(to).store(value, std::memory_order_relaxed);
}

// Sum of weights[at[i]] * values[i]: a sparse row times a vector that others change.
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

// Copies floats that others change into the caller's own `to`.
void read(const float* from, std::span<float> to);

// As kernels::update, for weights that others read and write; with `shares_state` also for shared
// states. The same bits if there are no other writers. Gradients and `copy` are the caller's own.
// `copy`, unless nullptr, receives the new weights while their cache lines are present; a later
// read would fetch them again.
void update(const kernels::Pass& pass, float* weights, const float* gradients, float* state0,
            float* state1, size_t n, bool shares_state, float* copy = nullptr);

// For each float: if common != base, common += share * (own - base), limited to between common and
// own; else common = own. Then own = base = common. No concurrent store to `own` is lost: it is
// changed by compare-and-swap. Others may read `common`; `base` is the caller's own.
void merge(std::span<float> common, float* own, float* base, float share);

}  // namespace penstock::train::relaxed
