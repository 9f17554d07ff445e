#pragma once

#include <cstddef>
#include <string>

#include "penstock/device/driver.h"

namespace penstock::device {

// Bytes per second from the host's memory to a device.
struct LinkSpeed {
  double pinned = 0;    // as batches are copied; 0: no memory can be pinned
  double pageable = 0;  // as without penstock: the driver copies twice
};

// Measures the fastest of a few copies of `bytes`. Waits for them; takes device memory and pinned
// memory of that size meanwhile. Errors: those of Driver::load(); kNotFound (no such device),
// kOutOfMemory, kSystem.
LinkSpeed link_speed(int device, size_t bytes, const std::string& library = Driver::kLibrary);

}  // namespace penstock::device
