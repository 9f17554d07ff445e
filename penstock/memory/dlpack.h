#pragma once

#include "penstock/memory/dlpack_abi.h"
#include "penstock/memory/tensor.h"

namespace penstock {

// Exchanges tensors with other frameworks without a copy, by the DLPack protocol. Does not touch
// Python; the bindings wrap the structs in capsules.
//
// Threads: any; deleters may be called from any thread too.

// The caller owns the result. The consumer calls its deleter once, which releases the tensor's
// owner (its lease). Error kInvalidArgument if a stride is not a multiple of the element's size.
// `device`: of the memory, if the tensor describes memory of a device.
dlpack::ManagedTensorVersioned* to_dlpack_versioned(const Tensor& tensor,
                                                    dlpack::Device device = {dlpack::kCpu, 0});
// The old struct has no read-only flag: a read-only tensor is an Error kInvalidArgument.
dlpack::ManagedTensor* to_dlpack(const Tensor& tensor, dlpack::Device device = {dlpack::kCpu, 0});

// A view of the producer's memory. The last tensor of it calls the deleter. Takes ownership of
// `managed`, unless it throws: Error kInvalidArgument for a device other than the CPU, elements
// that are not a DType (sub-byte, vector lanes, handles), or a newer major version.
Tensor from_dlpack(dlpack::ManagedTensorVersioned* managed);
// The old struct has no read-only flag: pass `read_only` for producers known to be immutable.
Tensor from_dlpack(dlpack::ManagedTensor* managed, bool read_only = false);

}  // namespace penstock
