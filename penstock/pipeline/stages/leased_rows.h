#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "penstock/memory/allocator.h"
#include "penstock/pipeline/element/element.h"
#include "penstock/pipeline/stages/collate.h"

namespace penstock {

// Elements of a stream chunk that stay in the blocks of the arena where workers made them. The
// chunk has a table of their addresses, and a lease on each block:
//
//   u64 number of leases
//   Ref of each lease
//   for each leaf: i64 addresses[rows], of the values, counted from the table's start
//                  if the leaf is variable: i64 lengths[rows][axes]
//   copies of values that lie in no leased block, from 64-byte boundaries on
//
// A view of the table; any thread.
class LeasedRows {
 public:
  LeasedRows() = default;
  LeasedRows(SpecRef spec, uint64_t rows, const std::byte* table)
      : spec_(std::move(spec)), rows_(rows), table_(table) {}

  // The size of a table with the collected rows and `leases` leases.
  static uint64_t bytes_of(const Collector& rows, uint64_t leases, const Allocator& arena);
  // Writes the table into memory of the arena. Returns the bytes of copied values. REQUIRED: values
  // in the arena lie in blocks of `leases`, which pass to the table.
  static uint64_t write(const Collector& rows, std::span<const Ref> leases, const Allocator& arena,
                        std::byte* table);
  // Of the table. To be returned to the arena's region when the table is released.
  static std::span<const Ref> leases(const std::byte* table);

  const SpecRef& spec() const { return spec_; }
  uint64_t rows() const { return rows_; }
  // As Block::view.
  void view(uint64_t row, Chunk& out, uint32_t at) const;

 private:
  SpecRef spec_;
  uint64_t rows_ = 0;
  const std::byte* table_ = nullptr;
};

}  // namespace penstock
