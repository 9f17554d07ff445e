#include "penstock/train/kernels.h"

#include <algorithm>
#include <atomic>
#include <cmath>

// Compiled with -ffp-contract=off, without which bits depend on the instruction set, and with
// -fno-math-errno -fno-trapping-math, without which loops with roots and comparisons stay scalar.
namespace penstock::train::kernels {
namespace {

#define PENSTOCK_INLINE __attribute__((always_inline)) inline

template <Formula formula>
PENSTOCK_INLINE void update_body(const Pass& pass, float* __restrict weights,
                                 const float* __restrict gradients, float* __restrict state0,
                                 float* __restrict state1, size_t n) {
  const Pass p = pass;
  for (size_t i = 0; i < n; ++i) {
    float w = weights[i];
    float g = gradients[i] * p.scale;
    g = g < -p.clip ? -p.clip : g;  // NaN stays NaN
    g = g > p.clip ? p.clip : g;
    g = g + p.decay * w;
    if constexpr (formula == Formula::kSgd) {
      w = w - p.rate * g;
    } else if constexpr (formula == Formula::kMomentum) {
      const float v = p.memory * state0[i] + g;
      state0[i] = v;
      w = w - p.rate * v;
    } else if constexpr (formula == Formula::kNesterov) {
      const float v = p.memory * state0[i] + g;
      state0[i] = v;
      w = w - p.rate * (g + p.memory * v);
    } else if constexpr (formula == Formula::kAdagrad) {
      const float sum = state0[i] + g * g;
      state0[i] = sum;
      w = w - p.rate * (g / (std::sqrt(sum) + p.eps));
    } else if constexpr (formula == Formula::kRmsProp) {
      const float square = p.memory * state0[i] + p.fresh * (g * g);
      state0[i] = square;
      w = w - p.rate * (g / (std::sqrt(square) + p.eps));
    } else if constexpr (formula == Formula::kCentredRmsProp) {
      const float square = p.memory * state0[i] + p.fresh * (g * g);
      const float mean = state1[i] + p.fresh * (g - state1[i]);
      state0[i] = square;
      state1[i] = mean;
      const float variance = square - mean * mean;
      // Rounding may take it below 0.
      w = w - p.rate * (g / (std::sqrt(variance < 0 ? 0 : variance) + p.eps));
    } else {
      const float first = state0[i] + p.fresh * (g - state0[i]);
      const float second = p.memory2 * state1[i] + p.fresh2 * (g * g);
      state0[i] = first;
      state1[i] = second;
      w = w * p.keep - p.rate * (first / (std::sqrt(second) * p.root + p.eps));
    }
    weights[i] = w;
  }
}

PENSTOCK_INLINE void update_any(const Pass& pass, float* w, const float* g, float* s0, float* s1,
                                size_t n) {
  switch (pass.formula) {
    case Formula::kSgd:
      return update_body<Formula::kSgd>(pass, w, g, s0, s1, n);
    case Formula::kMomentum:
      return update_body<Formula::kMomentum>(pass, w, g, s0, s1, n);
    case Formula::kNesterov:
      return update_body<Formula::kNesterov>(pass, w, g, s0, s1, n);
    case Formula::kAdagrad:
      return update_body<Formula::kAdagrad>(pass, w, g, s0, s1, n);
    case Formula::kRmsProp:
      return update_body<Formula::kRmsProp>(pass, w, g, s0, s1, n);
    case Formula::kCentredRmsProp:
      return update_body<Formula::kCentredRmsProp>(pass, w, g, s0, s1, n);
    case Formula::kAdam:
      return update_body<Formula::kAdam>(pass, w, g, s0, s1, n);
  }
}

PENSTOCK_INLINE double piece_body(const float* values, size_t n) {
  constexpr size_t kLanes = 16;
  double lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const double x = values[i + lane];
      lanes[lane] += x * x;
    }
  }
  for (size_t lane = 0; i < n; ++i, ++lane) {
    const double x = values[i];
    lanes[lane] += x * x;
  }
  for (size_t width = kLanes / 2; width > 0; width /= 2) {
    for (size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// All that is compiled for one instruction set. With 512 bits the loops would wait for the same
// memory as with 256.
struct Set {
  void (*update)(const Pass&, float*, const float*, float*, float*, size_t);
  double (*piece)(const float*, size_t);
};

#define PENSTOCK_SET(name, attribute)                                                            \
  attribute void update_##name(const Pass& pass, float* w, const float* g, float* s0, float* s1, \
                               size_t n) {                                                       \
    update_any(pass, w, g, s0, s1, n);                                                           \
  }                                                                                              \
  attribute double piece_##name(const float* values, size_t n) { return piece_body(values, n); }

PENSTOCK_SET(plain, )
#if defined(__x86_64__)
PENSTOCK_SET(avx2, __attribute__((target("avx2"))))
constexpr Set kSets[] = {{update_plain, piece_plain}, {update_avx2, piece_avx2}};
size_t usable() { return __builtin_cpu_supports("avx2") ? 2 : 1; }
#else
constexpr Set kSets[] = {{update_plain, piece_plain}};
size_t usable() { return 1; }
#endif

std::atomic<size_t> chosen{SIZE_MAX};  // SIZE_MAX: nobody has looked yet

const Set& set() {
  size_t which = chosen.load(std::memory_order_relaxed);
  if (which == SIZE_MAX) {
    which = usable() - 1;
    chosen.store(which, std::memory_order_relaxed);
  }
  return kSets[which];
}

}  // namespace

void update(const Pass& pass, float* weights, const float* gradients, float* state0, float* state1,
            size_t n) {
  set().update(pass, weights, gradients, state0, state1, n);
}

double sum_of_squares(std::span<const float> values) {
  const Set& best = set();
  double sum = 0;
  while (!values.empty()) {
    const size_t n = std::min(values.size(), kPiece);
    sum += best.piece(values.data(), n);
    values = values.subspan(n);
  }
  return sum;
}

size_t instruction_sets() { return usable(); }

void use_instruction_set(size_t which) {
  chosen.store(std::min(which, usable() - 1), std::memory_order_relaxed);
}

}  // namespace penstock::train::kernels
