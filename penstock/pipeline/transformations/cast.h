#pragma once

#include <string>
#include <vector>

#include "penstock/pipeline/stages/field_op.h"

namespace penstock {

// Fields with another dtype. Between integers the lowest bits count, as in C; a fraction is cut
// off; a floating-point number beyond an integer's range becomes the nearest that there is, and NaN
// 0; everything but 0 is true. The same bits on every machine.
class CastOp : public FieldOp {
 public:
  // `fields`: empty: all arrays of numbers. Complex numbers, and strings, are an error. Error
  // kInvalidArgument: dtype is complex.
  explicit CastOp(DType dtype, std::vector<std::string> fields = {});

  std::string title() const override;

 private:
  bool applies(const Leaf& leaf) const override;
  Leaf result_of(const Leaf& in) const override;
  std::unique_ptr<Run> bind_leaf(const Leaf& in, const Leaf& out, Context& context) const override;

  DType dtype_;
};

}  // namespace penstock
