#pragma once

#include "penstock/memory/tensor.h"

namespace at {
class Tensor;
}

namespace penstock::torch {

// The same memory as a libtorch tensor, which keeps it alive as a copy of `tensor` would: a field
// of a batch holds its lease. Copied are only read-only tensors, for torch knows none, and those
// with strides that torch has not (negative ones, or no multiples of the element).
// Error kInvalidArgument: uint16, uint32 or uint64, or no data. Threads: any.
at::Tensor to_torch(const Tensor& tensor);

// And back: shares the memory of a dense tensor on the CPU, whatever its strides. Writing to it is
// not seen by autograd. Error kInvalidArgument: a tensor elsewhere, sparse, undefined, or of a type
// that penstock has not. Threads: any.
Tensor from_torch(const at::Tensor& tensor);

}  // namespace penstock::torch
