#include "penstock/pipeline/stages/leased_rows.h"

#include <algorithm>
#include <cstring>

namespace penstock {
namespace {

constexpr uint64_t aligned(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

uint64_t lengths_bytes(const Leaf& leaf, uint64_t rows) {
  return leaf.fixed() ? 0 : rows * leaf.shape.size() * sizeof(int64_t);
}

uint64_t columns_at(uint64_t leases) { return sizeof(uint64_t) + leases * sizeof(Ref); }

// Where the copies begin.
uint64_t copies_at(const ElementSpec& spec, uint64_t rows, uint64_t leases) {
  uint64_t bytes = columns_at(leases);
  for (const Leaf& leaf : spec.leaves()) {
    bytes += rows * sizeof(int64_t) + lengths_bytes(leaf, rows);
  }
  return aligned(bytes);
}

}  // namespace

uint64_t LeasedRows::bytes_of(const Collector& rows, uint64_t leases, const Allocator& arena) {
  uint64_t bytes = copies_at(*rows.spec(), rows.rows(), leases);
  rows.each_row([&](const Chunk& chunk, uint32_t row, uint64_t) {
    for (size_t leaf = 0; leaf < rows.spec()->leaves().size(); ++leaf) {
      if (!arena.contains(chunk.at(leaf, row))) bytes += aligned(chunk.bytes(leaf, row));
    }
  });
  return bytes;
}

uint64_t LeasedRows::write(const Collector& rows, std::span<const Ref> leases,
                           const Allocator& arena, std::byte* table) {
  const uint64_t count = leases.size();
  std::memcpy(table, &count, sizeof(count));
  if (count != 0) std::memcpy(table + sizeof(count), leases.data(), leases.size_bytes());
  std::byte* column = table + columns_at(count);
  std::byte* copy = table + copies_at(*rows.spec(), rows.rows(), count);
  uint64_t copied = 0;
  for (size_t leaf = 0; leaf < rows.spec()->leaves().size(); ++leaf) {
    const Leaf& of = rows.spec()->leaves()[leaf];
    auto* address = reinterpret_cast<int64_t*>(column);
    int64_t* lengths = address + rows.rows();
    rows.each_row([&](const Chunk& chunk, uint32_t row, uint64_t) {
      const std::byte* values = chunk.at(leaf, row);
      const uint64_t bytes = chunk.bytes(leaf, row);
      if (!arena.contains(values)) {
        if (bytes != 0) std::memcpy(copy, values, bytes);
        values = copy;
        copy += aligned(bytes);
        copied += bytes;
      }
      *address++ = values - table;
      if (!of.fixed()) lengths = std::ranges::copy(chunk.shape(leaf, row), lengths).out;
    });
    column += rows.rows() * sizeof(int64_t) + lengths_bytes(of, rows.rows());
  }
  return copied;
}

std::span<const Ref> LeasedRows::leases(const std::byte* table) {
  uint64_t count;
  std::memcpy(&count, table, sizeof(count));
  return {reinterpret_cast<const Ref*>(table + sizeof(count)), count};
}

void LeasedRows::view(uint64_t row, Chunk& out, uint32_t at) const {
  const std::byte* column = table_ + columns_at(leases(table_).size());
  for (size_t leaf = 0; leaf < spec_->leaves().size(); ++leaf) {
    const Leaf& of = spec_->leaves()[leaf];
    const auto* addresses = reinterpret_cast<const int64_t*>(column);
    const std::byte* values = table_ + addresses[row];
    if (of.fixed()) {
      out.view(leaf, at, values, of.shape);
    } else {
      const size_t axes = of.shape.size();
      out.view(leaf, at, values, {addresses + rows_ + row * axes, axes});
    }
    column += rows_ * sizeof(int64_t) + lengths_bytes(of, rows_);
  }
}

}  // namespace penstock
