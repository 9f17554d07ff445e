#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

// The loops over floats: the formulas of the optimizers, and the sum of squares. Each is compiled
// for several instruction sets, of which the best that the processor has is chosen at run time.
// Every one of them gives the same bits: the formulas are element by element, nothing is contracted
// into fused operations, and the sum has an order of its own. Any thread.
namespace penstock::train::kernels {

enum class Formula : uint8_t {
  kSgd,
  kMomentum,
  kNesterov,
  kAdagrad,
  kRmsProp,
  kCenteredRmsProp,
  kAdam,  // and AdamW, whose weights are multiplied by `keep` first
};

// The numbers of one update. The gradient that a formula sees is
//   clip(gradient * scale, -clip, clip) + decay * weight.
struct Pass {
  Formula formula = Formula::kSgd;
  float scale = 1;
  float clip = 0;  // infinity: it is not clipped
  float decay = 0;
  float keep = 1;
  float rate = 0;  // the learning rate; Adam's is corrected for the bias of the first moment
  float memory = 0, fresh = 0;    // of the first state slab: m = memory * m + fresh * g
  float memory2 = 0, fresh2 = 0;  // of the second
  float root = 1;  // what the root of Adam's second moment is multiplied with for its bias
  float eps = 0;
};

// weights and states, in place, for n floats. States that the formula has not are not touched and
// may be nullptr. No two of the ranges overlap.
void update(const Pass& pass, float* weights, const float* gradients, float* state0, float* state1,
            size_t n);

// In doubles, in 16 lanes by position, over pieces of kPiece floats whose sums are added in order.
// It is finite if and only if all values are.
inline constexpr size_t kPiece = 4096;
double sum_of_squares(std::span<const float> values);
// Whether all values are; sooner said than by their squares.
bool finite(std::span<const float> values);

// For tests: how many instruction sets this processor runs, and from now on only this one of them
// is used, from 0, the plainest.
size_t instruction_sets();
void use_instruction_set(size_t which);

}  // namespace penstock::train::kernels
