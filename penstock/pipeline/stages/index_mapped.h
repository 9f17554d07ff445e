#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// Reads the input at the positions that `map` returns. `map` is as IndexMapped::map, but belongs to
// one reader, so it may cache work between chunks. One thread.
template <class Map>
class MappedReader : public IndexedReader {
 public:
  MappedReader(Map map, std::unique_ptr<IndexedReader> input)
      : map_(std::move(map)), input_(std::move(input)) {}

  void fetch(const At& at, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
    std::array<uint64_t, Chunk::kRows> mapped;
    std::copy(positions.begin(), positions.end(), mapped.begin());
    for (std::span<uint64_t> left(mapped.data(), positions.size()); !left.empty();) {
      At there = at;
      uint32_t count = map_(there, left);
      input_->fetch(there, left.first(count), out, row);
      left = left.subspan(count);
      row += count;
    }
  }

 private:
  Map map_;
  std::unique_ptr<IndexedReader> input_;
};

template <class Map>
std::unique_ptr<IndexedReader> mapped_reader(Map map, std::unique_ptr<IndexedReader> input) {
  return std::make_unique<MappedReader<Map>>(std::move(map), std::move(input));
}

}  // namespace penstock
