#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace penstock::train {

// Memory for batches, one after the other: that of a large one which nobody holds any more is used
// again, for it is there already, and new pages cost more than filling them. Keeps kMost pieces at
// most. One thread at a time; what it gave may be let go of in any.
class BatchMemory {
 public:
  static constexpr size_t kMost = 4;

  // 64-byte aligned, contents undefined. May throw std::bad_alloc.
  std::shared_ptr<std::byte> take(uint64_t bytes);

 private:
  struct Piece {
    std::shared_ptr<std::byte> memory;
    uint64_t bytes;
  };
  std::vector<Piece> pieces_;
};

}  // namespace penstock::train
