#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

// The loops over floats: the optimizers' formulas, and the sum of squares. Each is compiled for
// several instruction sets, and the best that the processor has is chosen at run time. All give the
// same bits: formulas are element by element, nothing is contracted into fused operations, and the
// sum has a fixed order. Threads: any.
namespace penstock::train::kernels {

enum class Formula : uint8_t {
  kSgd,
  kMomentum,
  kNesterov,
  kAdagrad,
  kRmsProp,
  kCenteredRmsProp,
  kAdam,  // and AdamW, whose weights are first multiplied by `keep`
};

// The numbers of one update. The formulas use the gradient
//   clip(gradient * scale, -clip, clip) + decay * weight.
struct Pass {
  Formula formula = Formula::kSgd;
  float scale = 1;
  float clip = 0;  // infinity: no clipping
  float decay = 0;
  float keep = 1;
  float rate = 0;  // learning rate; for Adam with the bias correction of the first moment
  float memory = 0, fresh = 0;    // of the first state slab: m = memory * m + fresh * g
  float memory2 = 0, fresh2 = 0;  // of the second
  float root = 1;  // factor for the root of Adam's second moment: its bias correction
  float eps = 0;
};

// Updates n weights and states, in place. States that the formula does not have may be nullptr.
// REQUIRED: the ranges do not overlap.
void update(const Pass& pass, float* weights, const float* gradients, float* state0, float* state1,
            size_t n);

// In doubles, in 16 lanes by position, over pieces of kPiece floats whose sums are added in order.
// Finite if and only if all values are.
inline constexpr size_t kPiece = 4096;
double sum_of_squares(std::span<const float> values);
// Whether all values are finite; faster than the sum of squares.
bool finite(std::span<const float> values);

// For tests: the number of instruction sets that this processor runs, and a choice of one of them,
// from 0, the plainest.
size_t instruction_sets();
void use_instruction_set(size_t which);

}  // namespace penstock::train::kernels
