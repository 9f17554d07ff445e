#pragma once

#include "penstock/memory/tensor.h"

namespace at {
class Tensor;
}

namespace penstock::torch {

// A libtorch tensor over the same memory, which it keeps as a copy of `tensor` would: a batch's
// field holds its lease. Only these are copied: read-only tensors, since torch has none, and
// strides that torch does not have (negative, or no multiple of the element). Error
// kInvalidArgument: uint16, uint32 or uint64, or no data. Threads: any.
at::Tensor to_torch(const Tensor& tensor);

// A Tensor over the memory of a dense tensor on the CPU, with any strides. Autograd does not see
// writes to it. Error kInvalidArgument: a tensor elsewhere, sparse, undefined, or of a type that
// penstock does not have. Threads: any.
Tensor from_torch(const at::Tensor& tensor);

}  // namespace penstock::torch
