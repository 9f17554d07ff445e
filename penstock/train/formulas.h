#pragma once

#include <cmath>
#include <cstddef>

#include "penstock/train/kernels.h"

// The optimizers' formulas, element by element: for one float, or for several at once if F is a
// vector. Files that include this are compiled with -ffp-contract=off, without which bits depend on
// the instruction set, and with -fno-math-errno -fno-trapping-math, without which loops with roots
// and comparisons are not vectorised.
namespace penstock::train::kernels {

#define PENSTOCK_INLINE __attribute__((always_inline)) inline

inline constexpr size_t states_of(Formula formula) {
  if (formula == Formula::kSgd) return 0;
  return formula == Formula::kCenteredRmsProp || formula == Formula::kAdam ? 2 : 1;
}

PENSTOCK_INLINE float root_of(float x) { return std::sqrt(x); }

#if defined(__x86_64__)
typedef float __attribute__((vector_size(16))) Quad;  // NOLINT(modernize-use-using): an attribute
PENSTOCK_INLINE Quad root_of(Quad x) { return __builtin_ia32_sqrtps(x); }
#endif

// The weight after an update, from the weight and its gradient; states in place.
template <Formula formula, typename F>
PENSTOCK_INLINE F updated(const Pass& p, F w, F g, F& state0, F& state1) {
  const F most = p.clip - F{}, least = -most;
  g = g * p.scale;
  g = g < least ? least : g;  // NaN stays NaN
  g = g > most ? most : g;
  g = g + p.decay * w;
  if constexpr (formula == Formula::kSgd) {
    return w - p.rate * g;
  } else if constexpr (formula == Formula::kMomentum) {
    state0 = p.memory * state0 + g;
    return w - p.rate * state0;
  } else if constexpr (formula == Formula::kNesterov) {
    state0 = p.memory * state0 + g;
    return w - p.rate * (g + p.memory * state0);
  } else if constexpr (formula == Formula::kAdagrad) {
    state0 = state0 + g * g;
    return w - p.rate * (g / (root_of(state0) + p.eps));
  } else if constexpr (formula == Formula::kRmsProp) {
    state0 = p.memory * state0 + p.fresh * (g * g);
    return w - p.rate * (g / (root_of(state0) + p.eps));
  } else if constexpr (formula == Formula::kCenteredRmsProp) {
    state0 = p.memory * state0 + p.fresh * (g * g);
    state1 = state1 + p.fresh * (g - state1);
    F variance = state0 - state1 * state1;
    variance = variance < F{} ? F{} : variance;  // rounding can make it negative
    return w - p.rate * (g / (root_of(variance) + p.eps));
  } else {
    state0 = state0 + p.fresh * (g - state0);
    state1 = p.memory2 * state1 + p.fresh2 * (g * g);
    return w * p.keep - p.rate * (state0 / (root_of(state1) * p.root + p.eps));
  }
}

// Calls call.template operator()<formula>(), with the formula as a constant.
template <typename Call>
PENSTOCK_INLINE void with_formula(Formula formula, Call call) {
  switch (formula) {
    case Formula::kSgd:
      return call.template operator()<Formula::kSgd>();
    case Formula::kMomentum:
      return call.template operator()<Formula::kMomentum>();
    case Formula::kNesterov:
      return call.template operator()<Formula::kNesterov>();
    case Formula::kAdagrad:
      return call.template operator()<Formula::kAdagrad>();
    case Formula::kRmsProp:
      return call.template operator()<Formula::kRmsProp>();
    case Formula::kCenteredRmsProp:
      return call.template operator()<Formula::kCenteredRmsProp>();
    case Formula::kAdam:
      return call.template operator()<Formula::kAdam>();
  }
}

}  // namespace penstock::train::kernels
