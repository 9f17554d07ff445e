#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "penstock/device/driver.h"
#include "penstock/memory/region.h"

namespace penstock::device {

// The pages of a shared region that the driver has pinned, so that the device reads them where
// workers wrote them. They stay pinned as long as the region is mapped here. All devices may read
// them.
//
// Threads: any.
class Pins {
 public:
  // Pins a region up to the offset `end`, unless it is pinned that far already. Each further piece
  // is as large as all before it: the first batch does not wait for the pages of a whole queue, and
  // pieces stay few. REQUIRED: `end` is committed; a current context, of the device `handle`.
  // nullptr: nothing is pinned: the region is private (its pages move in a fork), or the driver
  // refuses.
  static std::shared_ptr<Pins> of(const std::shared_ptr<Region>& region, size_t end,
                                  const std::shared_ptr<const Driver>& driver, int handle);

  ~Pins();
  Pins(const Pins&) = delete;
  Pins& operator=(const Pins&) = delete;

  // The pinned bytes from an offset in the region to the end of its piece; a copy may not go
  // beyond. 0: not pinned.
  size_t from(size_t offset) const;
  size_t bytes() const;

 private:
  Pins(std::shared_ptr<const Driver> driver, int handle);
  void grow(Region& region, size_t wanted);

  const std::shared_ptr<const Driver> driver_;
  const int handle_;
  const pid_t pid_;
  Context* context_ = nullptr;
  std::byte* base_ = nullptr;
  std::vector<size_t> ends_;  // of the pieces, which follow each other from the region's start
  size_t refused_ = 0;        // the committed bytes when the driver last refused a piece
};

}  // namespace penstock::device
