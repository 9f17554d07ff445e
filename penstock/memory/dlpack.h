#pragma once

#include "penstock/memory/dlpack_abi.h"
#include "penstock/memory/tensor.h"

namespace penstock {

// Tensors out to and in from other frameworks without a copy, by the DLPack protocol. None of this
// touches Python: wrapping in capsules is the bindings' business.
//
// Threads: any; deleters may be called from any thread too.

// The caller owns the result: whoever consumes it calls its deleter once, which drops the tensor's
// owner (its lease). Error kInvalidArgument if a stride is no multiple of the element's size.
dlpack::ManagedTensorVersioned* to_dlpack_versioned(const Tensor& tensor);
// The old struct cannot say "read-only": a read-only tensor is an Error kInvalidArgument.
dlpack::ManagedTensor* to_dlpack(const Tensor& tensor);

// A view of the producer's memory that calls its deleter when the last tensor of it dies. Takes
// `managed` over, unless it throws: Error kInvalidArgument for a device other than the CPU, for
// elements that are no DType (sub-byte, vector lanes, handles), or a newer major version.
Tensor from_dlpack(dlpack::ManagedTensorVersioned* managed);
// The old struct says nothing about writing: `read_only` is for producers known to be immutable.
Tensor from_dlpack(dlpack::ManagedTensor* managed, bool read_only = false);

}  // namespace penstock
