#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/memory/dtype.h"

namespace penstock {

// memcpy with non-temporal stores for large copies, which keep the caller's data in the caches:
// another core reads the copy next. Once it returns, the copy is visible to other threads and
// processes by ordinary release and acquire. Any thread.
void copy_stream(void* dst, const void* src, size_t bytes);

// Copies row_bytes from src_base + indices[i] * row_stride to row i of dst, for i < count. The rows
// of dst are contiguous. Prefetches rows, so that it is bound by memory bandwidth instead of
// latency. Indices are not checked. Any thread.
void gather_rows(void* dst, const void* src_base, size_t row_bytes, size_t row_stride,
                 const uint64_t* indices, size_t count);

// Copies numbers of `number` bytes each (1, 2, 4 or 8) and reverses the byte order of each. `dst`
// may be `src`. REQUIRED: `bytes` is a multiple of `number`. Any thread.
void copy_byteswapped(void* dst, const void* src, size_t bytes, size_t number);
// The size of the numbers that a byte order applies to: of a complex value, each of its two parts.
size_t number_bytes(DType dtype);

}  // namespace penstock
