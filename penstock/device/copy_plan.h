#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "penstock/device/driver.h"
#include "penstock/memory/tensor.h"

namespace penstock {
class Region;
}

namespace penstock::device {

class Pins;

// Where the arrays of a batch lie in a slot, and the copies that bring them there.
struct CopyPlan {
  // Bytes from host memory to an offset in the slot.
  struct Piece {
    const std::byte* from = nullptr;
    size_t to = 0;
    size_t bytes = 0;
  };

  std::vector<size_t> offsets;  // of each array in the slot
  std::vector<Piece> pieces;
  std::vector<size_t> gather;                 // the arrays that are gathered at the slot's start
  size_t gathered = 0;                        // their bytes
  size_t bytes = 0;                           // of all
  std::vector<std::shared_ptr<void>> owners;  // of memory that copies read in place
};

// Arrays that lie close together in pinned memory are one copy, gaps included; large ones in pinned
// memory a copy each; all others are gathered first, and the caller adds the piece of them.
//
// Threads: one at a time.
class CopyPlanner {
 public:
  // `handle`: of the device.
  CopyPlanner(std::shared_ptr<const Driver> driver, int handle)
      : driver_(std::move(driver)), handle_(handle) {}

  // Pins the shared regions in which the arrays lie. REQUIRED: a current context of the device.
  CopyPlan plan(const std::vector<Tensor>& tensors);
  // Drops the region of the last batch.
  void forget();

 private:
  bool plan_as_one(const std::vector<Tensor>& tensors, CopyPlan& plan);
  void add_pieces(CopyPlan& plan, const std::byte* from, size_t to, size_t bytes);
  size_t pinned_from(const std::byte* address, size_t bytes);

  const std::shared_ptr<const Driver> driver_;
  const int handle_;
  std::shared_ptr<Region> region_;  // of the last batch
  std::shared_ptr<Pins> pins_;      // of that region
};

}  // namespace penstock::device
