#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/memory/dtype.h"

namespace penstock {

// memcpy that, for large copies, writes past the caches: the bytes are next read by somebody else,
// and what the caches hold is of more use to the caller. Visible to other threads and processes
// under the ordinary rules of release and acquire after it returns. Any thread.
void copy_stream(void* dst, const void* src, size_t bytes);

// Row i of dst (rows of row_bytes, one after the other) becomes the row_bytes at
// src_base + indices[i] * row_stride, for i < count; fetches rows ahead of their turn, so that it
// runs at the memory's throughput and not its latency. Indices are not checked. Any thread.
void gather_rows(void* dst, const void* src_base, size_t row_bytes, size_t row_stride,
                 const uint64_t* indices, size_t count);

// Copies numbers of so many bytes each (1, 2, 4 or 8), with the bytes of each in the opposite
// order. `dst` may be `src`. REQUIRED: `bytes` are whole numbers. Any thread.
void copy_reversed(void* dst, const void* src, size_t bytes, size_t number);
// Bytes of a number that stands in one byte order: of a complex value, each of its two.
size_t number_bytes(DType dtype);

}  // namespace penstock
