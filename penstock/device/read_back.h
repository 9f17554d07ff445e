#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "penstock/device/driver.h"

namespace penstock::device {

// Copies memory of a CUDA device to the host, once, and returns when it is there. REQUIRED: the
// work that writes this memory has finished. Errors: of Driver::load(); kNotFound (no such device),
// kSystem. Threads: any.
void read_back(int device, DeviceMemory from, std::span<std::byte> to,
               const std::string& library = Driver::kLibrary);

}  // namespace penstock::device
