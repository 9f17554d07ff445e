#pragma once

#include <string>
#include <vector>

#include "penstock/pipeline/stages/field_op.h"

namespace penstock {

// (x - mean) / std, computed in float32 and given as float32: a pixel's value less the channel's
// mean, in units of its standard deviation. The same bits on every machine.
class NormalizeOp : public FieldOp {
 public:
  // `mean`, `std`: one number each, or one for each place of the last axis (channel). `fields`:
  // empty: all arrays of uint8, float32 or float64. Error kInvalidArgument: no numbers, numbers of
  // both that differ in count, a std that is 0 or not finite.
  NormalizeOp(std::vector<float> mean, std::vector<float> std,
              std::vector<std::string> fields = {});

  std::string title() const override;

 private:
  bool applies(const Leaf& leaf) const override;
  Leaf result_of(const Leaf& in) const override;
  std::unique_ptr<Run> bind_leaf(const Leaf& in, const Leaf& out, Context& context) const override;

  std::vector<float> mean_, std_;
};

}  // namespace penstock
