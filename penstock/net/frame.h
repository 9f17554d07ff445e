#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock::net {

// A message on the wire: this header, the head, the body. Numbers are little-endian.
struct FrameHeader {
  static constexpr uint32_t kMessage = 0x31465350;  // "PSF1"
  static constexpr uint32_t kGoodbye = 0x30465350;  // "PSF0": no head, no body, and the end

  uint32_t kind = kMessage;
  uint16_t flags = 0;
  uint16_t reserved = 0;  // zero
  uint32_t head_bytes = 0;
  uint32_t reserved_too = 0;  // zero
  uint64_t body_bytes = 0;

  // The header's first byte brought a descriptor.
  static constexpr uint16_t kDescriptor = 1;
};
static_assert(sizeof(FrameHeader) == 24);

inline constexpr size_t kMostHead = 64 * 1024;

}  // namespace penstock::net
