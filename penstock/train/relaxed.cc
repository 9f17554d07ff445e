#include "penstock/train/relaxed.h"

#include <algorithm>
#include <cstring>

// Compilers make one instruction of each atomic access and no vectors of several. So floats are
// moved in pairs, each an atomic access of 64 bits, between the shared memory and a piece of the
// stack, where the vectorised formulas work on them.
namespace penstock::train::relaxed {
namespace {

typedef uint64_t __attribute__((may_alias))
Pair;  // NOLINT(modernize-use-using): takes no attribute

constexpr size_t kPiece = 512;  // floats: all of a formula's pieces stay in the first-level cache

bool is_pair(const float* at) { return reinterpret_cast<uintptr_t>(at) % sizeof(Pair) == 0; }

void write(const float* from, float* to, size_t n) {
  size_t i = 0;
  if (n > 0 && !is_pair(to)) store(to[i], from[i]), ++i;
#pragma GCC unroll 8  // which takes half of the time
  for (; i + 2 <= n; i += 2) {
    uint64_t two;
    std::memcpy(&two, from + i, sizeof(two));
    __atomic_store_n(reinterpret_cast<Pair*>(to + i), two, __ATOMIC_RELAXED);
  }
  if (i < n) store(to[i], from[i]);
}

void read(const float* from, float* to, size_t n) {
  size_t i = 0;
  if (n > 0 && !is_pair(from)) to[i] = load(from[i]), ++i;
#pragma GCC unroll 8
  for (; i + 2 <= n; i += 2) {
    const uint64_t two = __atomic_load_n(reinterpret_cast<const Pair*>(from + i), __ATOMIC_RELAXED);
    std::memcpy(to + i, &two, sizeof(two));
  }
  if (i < n) to[i] = load(from[i]);
}

// One of the ranges that a formula changes: a piece of it on the stack, or, if it is nobody
// else's, where it is.
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

}  // namespace

void read(const float* from, std::span<float> to) { read(from, to.data(), to.size()); }

void update(const kernels::Pass& pass, float* weights, const float* gradients, float* state0,
            float* state1, size_t n, bool shares_state) {
  Range w(weights, true), s0(state0, shares_state), s1(state1, shares_state);
  for (size_t at = 0; at < n; at += kPiece) {
    const size_t count = std::min(kPiece, n - at);
    kernels::update(pass, w.take(at, count), gradients + at, s0.take(at, count), s1.take(at, count),
                    count);
    s0.give_back(at, count);
    s1.give_back(at, count);
    w.give_back(at, count);
  }
}

void merge(std::span<float> common, float* own, float* base, float share) {
  alignas(64) float theirs[kPiece], mine[kPiece], now[kPiece];
  for (size_t at = 0; at < common.size(); at += kPiece) {
    const size_t count = std::min(kPiece, common.size() - at);
    read(&common[at], theirs, count);
    read(own + at, mine, count);
    float* const before = base + at;
    for (size_t i = 0; i < count; ++i) {
      // Not beyond both: where all are drawn to one place, what one has gone is not gone again.
      const float least = std::min(theirs[i], mine[i]), most = std::max(theirs[i], mine[i]);
      float both = theirs[i] + share * (mine[i] - before[i]);
      both = both < least ? least : both;
      both = both > most ? most : both;
      theirs[i] = before[i] = theirs[i] == before[i] ? mine[i] : both;
    }
    write(theirs, &common[at], count);
    read(own + at, now, count);
    for (size_t i = 0; i < count; ++i) {
      const float moved = now[i] + (theirs[i] - mine[i]);
      now[i] = now[i] == mine[i] ? theirs[i] : moved;
    }
    write(now, own + at, count);
  }
}

}  // namespace penstock::train::relaxed
