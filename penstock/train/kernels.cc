#include "penstock/train/kernels.h"

#include <algorithm>
#include <atomic>
#include <bit>

#include "penstock/train/formulas.h"

namespace penstock::train::kernels {
namespace {

PENSTOCK_INLINE void update_any(const Pass& pass, float* __restrict weights,
                                const float* __restrict gradients, float* __restrict state0,
                                float* __restrict state1, size_t n) {
  const Pass p = pass;
  with_formula(
      p.formula, [&]<Formula formula>() __attribute__((always_inline)) {
        for (size_t i = 0; i < n; ++i) {
          float first = 0, second = 0;
          if constexpr (states_of(formula) > 0) first = state0[i];
          if constexpr (states_of(formula) > 1) second = state1[i];
          weights[i] = updated<formula>(p, weights[i], gradients[i], first, second);
          if constexpr (states_of(formula) > 0) state0[i] = first;
          if constexpr (states_of(formula) > 1) state1[i] = second;
        }
      });
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

PENSTOCK_INLINE bool finite_body(const float* values, size_t n) {
  constexpr uint32_t kExponent = 0x7f800000;  // of infinity and NaN
  uint32_t found = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(values[i]) & kExponent;
    found |= bits == kExponent ? 1 : 0;
  }
  return found == 0;
}

// The functions for one instruction set. Vectors of 512 bits would wait for the same memory as
// those of 256.
struct Set {
  void (*update)(const Pass&, float*, const float*, float*, float*, size_t);
  double (*piece)(const float*, size_t);
  bool (*finite)(const float*, size_t);
};

#define PENSTOCK_SET(name, attribute)                                                            \
  attribute void update_##name(const Pass& pass, float* w, const float* g, float* s0, float* s1, \
                               size_t n) {                                                       \
    update_any(pass, w, g, s0, s1, n);                                                           \
  }                                                                                              \
  attribute double piece_##name(const float* values, size_t n) { return piece_body(values, n); } \
  attribute bool finite_##name(const float* values, size_t n) { return finite_body(values, n); } \
  constexpr Set k##name{update_##name, piece_##name, finite_##name};

PENSTOCK_SET(plain, )
#if defined(__x86_64__)
PENSTOCK_SET(avx2, __attribute__((target("avx2"))))
constexpr Set kSets[] = {kplain, kavx2};
size_t usable() { return __builtin_cpu_supports("avx2") ? 2 : 1; }
#else
constexpr Set kSets[] = {kplain};
size_t usable() { return 1; }
#endif

std::atomic<size_t> chosen{SIZE_MAX};  // not chosen yet

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

bool finite(std::span<const float> values) { return set().finite(values.data(), values.size()); }

size_t instruction_sets() { return usable(); }

void use_instruction_set(size_t which) {
  chosen.store(std::min(which, usable() - 1), std::memory_order_relaxed);
}

}  // namespace penstock::train::kernels
