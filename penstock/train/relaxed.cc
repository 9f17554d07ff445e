#include "penstock/train/relaxed.h"

#include <algorithm>
#include <cstring>

#include "penstock/train/formulas.h"

// Compilers emit one instruction for each atomic access and do not vectorise them. So floats are
// moved in twos or fours, each by one atomic access. Fours are a vector to which the formulas apply
// directly; twos go through a piece of the stack, to which kernels::update applies.
namespace penstock::train::relaxed {
namespace {

using kernels::Formula;

constexpr size_t kPiece = 512;  // floats: a formula's pieces stay in the first-level cache

typedef uint64_t __attribute__((may_alias))
Pair;  // NOLINT(modernize-use-using): takes no attribute

void store_pair(float* to, uint64_t two) {
  __atomic_store_n(reinterpret_cast<Pair*>(to), two, __ATOMIC_RELAXED);
}
uint64_t load_pair(const float* from) {
  return __atomic_load_n(reinterpret_cast<const Pair*>(from), __ATOMIC_RELAXED);
}
bool is_pair(const float* at) { return reinterpret_cast<uintptr_t>(at) % sizeof(Pair) == 0; }

void write(const float* from, float* to, size_t n) {
  size_t i = 0;
  if (n > 0 && !is_pair(to)) store(to[i], from[i]), ++i;
#pragma GCC unroll 8  // halves the time
  for (; i + 2 <= n; i += 2) {
    uint64_t two;
    std::memcpy(&two, from + i, sizeof(two));
    store_pair(to + i, two);
  }
  if (i < n) store(to[i], from[i]);
}

void read(const float* from, float* to, size_t n) {
  size_t i = 0;
  if (n > 0 && !is_pair(from)) to[i] = load(from[i]), ++i;
#pragma GCC unroll 8
  for (; i + 2 <= n; i += 2) {
    const uint64_t two = load_pair(from + i);
    std::memcpy(to + i, &two, sizeof(two));
  }
  if (i < n) to[i] = load(from[i]);
}

// A range that a formula changes: read in pieces onto the stack, or in place if no other thread
// uses it.
class Range {
 public:
  Range(float* first, bool shared) : first_(first), shared_(shared) {}

  float* take(size_t at, size_t n) {
    if (first_ == nullptr || !shared_) return first_ == nullptr ? nullptr : first_ + at;
    read(first_ + at, piece_, n);
    return piece_;
  }
  void give_back(size_t at, size_t n) {
    if (first_ != nullptr && shared_) write(piece_, first_ + at, n);
  }

 private:
  float* const first_;
  const bool shared_;
  alignas(64) float piece_[kPiece];
};

void update_by_pieces(const kernels::Pass& pass, float* weights, const float* gradients,
                      float* state0, float* state1, size_t n, bool shares_state, float* copy) {
  Range w(weights, true), s0(state0, shares_state), s1(state1, shares_state);
  for (size_t at = 0; at < n; at += kPiece) {
    const size_t count = std::min(kPiece, n - at);
    float* const piece = w.take(at, count);
    kernels::update(pass, piece, gradients + at, s0.take(at, count), s1.take(at, count), count);
    if (copy != nullptr) std::memcpy(copy + at, piece, count * sizeof(float));
    s0.give_back(at, count);
    s1.give_back(at, count);
    w.give_back(at, count);
  }
}

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
// An aligned access of 16 bytes is atomic on every processor with AVX (Intel SDM 3A, 9.1.1; AMD APM
// 2, 7.3.2). Compilers offer it only as assembly, which sanitizers cannot see: they get the pairs.
#define PENSTOCK_AVX __attribute__((target("avx")))

using kernels::Quad;
typedef float __attribute__((vector_size(16), may_alias))
QuadInMemory;  // NOLINT(modernize-use-using): takes no attribute

constexpr size_t kLine = 16;    // floats in a line of the cache
constexpr size_t kAhead = 512;  // floats: prefetch distance

bool has_quads() { return __builtin_cpu_supports("avx"); }
bool is_quad(const float* at) { return reinterpret_cast<uintptr_t>(at) % sizeof(Quad) == 0; }

PENSTOCK_INLINE void load_as(bool, const float* from, float& to) { to = load(*from); }
PENSTOCK_AVX PENSTOCK_INLINE void load_as(bool shared, const float* from, Quad& to) {
  if (shared) {
    asm volatile("vmovaps %1, %0" : "=x"(to) : "m"(*reinterpret_cast<const QuadInMemory*>(from)));
  } else {
    std::memcpy(&to, from, sizeof(to));
  }
}
PENSTOCK_INLINE void store_as(bool, float* to, float from) { store(*to, from); }
PENSTOCK_AVX PENSTOCK_INLINE void store_as(bool shared, float* to, Quad from) {
  if (shared) {
    asm volatile("vmovaps %1, %0" : "=m"(*reinterpret_cast<QuadInMemory*>(to)) : "x"(from));
  } else {
    std::memcpy(to, &from, sizeof(from));
  }
}

// One float, or four of them.
template <Formula formula, bool shares_state, typename F>
PENSTOCK_AVX PENSTOCK_INLINE void update_at(const kernels::Pass& p, size_t at, float* w,
                                            const float* g, float* s0, float* s1, float* copy) {
  F weight, gradient, state0{}, state1{};
  load_as(true, w + at, weight);
  std::memcpy(&gradient, g + at, sizeof(F));
  if constexpr (states_of(formula) > 0) load_as(shares_state, s0 + at, state0);
  if constexpr (states_of(formula) > 1) load_as(shares_state, s1 + at, state1);
  weight = kernels::updated<formula>(p, weight, gradient, state0, state1);
  if constexpr (states_of(formula) > 0) store_as(shares_state, s0 + at, state0);
  if constexpr (states_of(formula) > 1) store_as(shares_state, s1 + at, state1);
  store_as(true, w + at, weight);
  if (copy != nullptr) std::memcpy(copy + at, &weight, sizeof(F));
}

template <Formula formula, bool shares_state>
PENSTOCK_AVX void update_by_quads(const kernels::Pass& pass, float* w, const float* g, float* s0,
                                  float* s1, size_t n, float* copy) {
  const kernels::Pass p = pass;
  size_t i = 0;
  for (; i < n && !is_quad(w + i); ++i) {
    update_at<formula, shares_state, float>(p, i, w, g, s0, s1, copy);
  }
  for (; i + kLine <= n; i += kLine) {
    // For writing: otherwise a line that another core changed is fetched twice, first for reading.
    if (n - i > kAhead) asm volatile("prefetchw %0" : : "m"(w[i + kAhead]));
#pragma GCC unroll 4
    for (size_t j = 0; j < kLine; j += 4) {
      update_at<formula, shares_state, Quad>(p, i + j, w, g, s0, s1, copy);
    }
  }
  for (; i < n; ++i) {
    update_at<formula, shares_state, float>(p, i, w, g, s0, s1, copy);
  }
}
#endif

// The pair after a change by to - from, to a pair that others may have changed since it was `from`.
uint64_t moved_pair(uint64_t now, uint64_t from, uint64_t to) {
  float is[2], was[2], goal[2];
  std::memcpy(is, &now, sizeof(now));
  std::memcpy(was, &from, sizeof(from));
  std::memcpy(goal, &to, sizeof(to));
  for (size_t i = 0; i < 2; ++i) is[i] = is[i] == was[i] ? goal[i] : is[i] + (goal[i] - was[i]);
  std::memcpy(&now, is, sizeof(now));
  return now;
}

void move_one(float& at, float from, float to) {
  const std::atomic_ref<float> shared(at);
  float now = from;
  // A failed exchange loads the current value.
  while (!shared.compare_exchange_weak(now, now == from ? to : now + (to - from),
                                       std::memory_order_relaxed)) {
  }
}

// Changes floats that others write from `from` to `to`; a concurrent store is never overwritten,
// but moved by the same difference.
void move(const float* from, const float* to, float* at, size_t n) {
  size_t i = 0;
  const auto one = [&] {
    if (from[i] != to[i]) move_one(at[i], from[i], to[i]);
    ++i;
  };
  if (n > 0 && !is_pair(at)) one();
  for (; i + 2 <= n; i += 2) {
    uint64_t was, goal;
    std::memcpy(&was, from + i, sizeof(was));
    std::memcpy(&goal, to + i, sizeof(goal));
    if (was == goal) continue;
    uint64_t now = was;
    while (!__atomic_compare_exchange_n(reinterpret_cast<Pair*>(at + i), &now,
                                        moved_pair(now, was, goal), true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
    }
  }
  if (i < n) one();
}

}  // namespace

void read(const float* from, std::span<float> to) { read(from, to.data(), to.size()); }

void update(const kernels::Pass& pass, float* weights, const float* gradients, float* state0,
            float* state1, size_t n, bool shares_state, float* copy) {
#ifdef PENSTOCK_AVX
  const size_t phase = reinterpret_cast<uintptr_t>(weights) % sizeof(Quad);
  const auto fits = [&](const float* state) {
    return state == nullptr || !shares_state ||
           reinterpret_cast<uintptr_t>(state) % sizeof(Quad) == phase;
  };
  if (has_quads() && fits(state0) && fits(state1)) {
    return kernels::with_formula(pass.formula, [&]<Formula formula>() {
      if (shares_state) {
        update_by_quads<formula, true>(pass, weights, gradients, state0, state1, n, copy);
      } else {
        update_by_quads<formula, false>(pass, weights, gradients, state0, state1, n, copy);
      }
    });
  }
#endif
  update_by_pieces(pass, weights, gradients, state0, state1, n, shares_state, copy);
}

void merge(std::span<float> common, float* own, float* base, float share) {
  alignas(64) float theirs[kPiece], mine[kPiece];
  for (size_t at = 0; at < common.size(); at += kPiece) {
    const size_t count = std::min(kPiece, common.size() - at);
    read(&common[at], theirs, count);
    read(own + at, mine, count);
    float* const before = base + at;
    for (size_t i = 0; i < count; ++i) {
      // Limited to between both: if all groups are drawn to one value, their steps must not add up.
      const float least = std::min(theirs[i], mine[i]), most = std::max(theirs[i], mine[i]);
      float both = theirs[i] + share * (mine[i] - before[i]);
      both = both < least ? least : both;
      both = both > most ? most : both;
      theirs[i] = before[i] = theirs[i] == before[i] ? mine[i] : both;
    }
    write(theirs, &common[at], count);
    move(mine, theirs, own + at, count);
  }
}

}  // namespace penstock::train::relaxed
