#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "penstock/memory/copy.h"

namespace penstock {
namespace gathering {

inline constexpr size_t kLine = 64;
// Larger rows are copied past the caches (copy_stream).
inline constexpr size_t kStreamedRow = size_t{256} << 10;

// The prefetch distance. A few kilobytes keep as many lines in flight as the core can handle; fewer
// than two rows leave no time, more than 32 gain nothing.
inline constexpr size_t kAheadBytes = 4096;
inline constexpr size_t kMaxAhead = 32;  // rows
// Of blocks: a part of the second-level cache.
inline constexpr size_t kBlockBytes = size_t{32} << 10;
// Of a row; the prefetcher follows longer ones by itself.
inline constexpr size_t kLinesFetched = 16;

// Rows of the destination are prefetched too, which pays if the memory was not used recently
// (measured: a fifth), but only for rows longer than a line or so: short ones are adjacent.
inline constexpr size_t kRowsFetchedOfDestination = 2;
inline constexpr size_t kShortRow = 128;

// Prefetches into the second-level cache, which leaves the first level's few line fill buffers to
// the copy (measured: 12.3 against 10.4 million rows of 784 bytes a second, 8.7 without
// prefetching).
//
// Must be inline: GCC removes calls of functions that only prefetch, since these have no side
// effects.
[[gnu::always_inline]] inline void fetch_row(const std::byte* row, size_t lines) {
  for (size_t line = 0; line < lines; ++line) __builtin_prefetch(row + line * kLine, 0, 2);
}

// kBytes: the length of rows at compile time, for lengths where the call of memcpy costs more than
// the copy; 0: `row_bytes`. `row_at(i)`: the address of row i; called for each i in order, and
// again when the row is copied.
template <size_t kBytes, class RowAt>
void gather(std::byte* dst, size_t row_bytes, size_t count, RowAt row_at) {
  size_t bytes = kBytes != 0 ? kBytes : row_bytes;
  size_t ahead = std::clamp<size_t>(kAheadBytes / std::max<size_t>(bytes, 1), 2, kMaxAhead);
  size_t lines = std::min((bytes + kLine - 1) / kLine, kLinesFetched);
  ahead = std::min(ahead, count);
  for (size_t i = 0; i < ahead; ++i) fetch_row(row_at(i), lines);
  for (size_t i = 0; i < count; ++i) {
    if (i + ahead < count) fetch_row(row_at(i + ahead), lines);
    if (bytes > kShortRow && i + kRowsFetchedOfDestination < count) {
      fetch_row(dst + (i + kRowsFetchedOfDestination) * bytes, lines);
    }
    std::memcpy(dst + i * bytes, row_at(i), bytes);
  }
}

// Rows of up to kLinesFetched lines, which are fetched as a whole: all of a block first, and then
// they are copied. So more lines are in flight than with rows that are fetched between copies
// (measured for rows of 256 and 784 bytes: a tenth to a fifth faster; shorter and longer rows gain
// nothing). `next_row()`: the address of the next row.
template <class NextRow>
void gather_blocks(std::byte* dst, size_t bytes, size_t count, NextRow next_row) {
  constexpr size_t kMaxRows = kBlockBytes / kShortRow;
  const size_t lines = (bytes + kLine - 1) / kLine;
  const size_t together = kBlockBytes / (lines * kLine);
  std::array<const std::byte*, kMaxRows> rows;
  while (count > 0) {
    const size_t n = std::min(together, count);
    for (size_t i = 0; i < n; ++i) {
      rows[i] = next_row();
      fetch_row(rows[i], lines);
    }
    for (size_t i = 0; i < n; ++i, dst += bytes) {
      if (i + kRowsFetchedOfDestination < n) {
        fetch_row(dst + kRowsFetchedOfDestination * bytes, lines);
      }
      std::memcpy(dst, rows[i], bytes);
    }
    count -= n;
  }
}

}  // namespace gathering

// gather_rows() of copy.h for rows that lie anywhere: `row_at(i)` is the address of row i. It is
// called for each i in order before the row is copied, and may be called for i again.
template <class RowAt>
void gather_rows(std::byte* to, size_t row_bytes, size_t count, RowAt row_at) {
  using namespace gathering;
  if (row_bytes == 0) return;
  if (row_bytes >= kStreamedRow) {
    for (size_t i = 0; i < count; ++i) copy_stream(to + i * row_bytes, row_at(i), row_bytes);
    return;
  }
  if (row_bytes > kShortRow && row_bytes <= kLinesFetched * kLine) {
    return gather_blocks(to, row_bytes, count,
                         [&, i = size_t{0}]() mutable { return row_at(i++); });
  }
  switch (row_bytes) {
    case 1:
      return gather<1>(to, row_bytes, count, row_at);
    case 2:
      return gather<2>(to, row_bytes, count, row_at);
    case 4:
      return gather<4>(to, row_bytes, count, row_at);
    case 8:
      return gather<8>(to, row_bytes, count, row_at);
    case 16:
      return gather<16>(to, row_bytes, count, row_at);
    default:
      return gather<0>(to, row_bytes, count, row_at);
  }
}

}  // namespace penstock
