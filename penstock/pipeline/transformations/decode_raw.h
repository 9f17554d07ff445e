#pragma once

#include <string>

#include "penstock/pipeline/stages/field_op.h"

namespace penstock {

// Bytes that are an array's values, in C order, become that array. Of bools every byte but 0 is
// true.
class DecodeRawOp : public FieldOp {
 public:
  // `field`: a byte string, or an array of uint8 with one axis. A string of another length fails.
  // `reversed`: the values stand in the byte order that is not the machine's. Error
  // kInvalidArgument: a length below 0, a size that overflows.
  DecodeRawOp(std::string field, DType dtype, Shape shape, bool reversed = false);

  std::string title() const override;

 private:
  bool applies(const Leaf&) const override { return false; }
  Leaf result_of(const Leaf& in) const override;
  std::unique_ptr<Run> bind_leaf(const Leaf& in, const Leaf& out, Context& context) const override;

  DType dtype_;
  Shape shape_;
  bool reversed_;
  uint64_t bytes_;
};

}  // namespace penstock
