#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "penstock/io/crc32c.h"

namespace penstock::tfrecord {

// One record of a TFRecord file, all numbers little-endian:
//   u64 n | u32 masked CRC-32C of these 8 bytes | n bytes of payload | u32 masked CRC-32C of them
inline constexpr uint64_t kHeader = 12, kFooter = 4, kFrame = kHeader + kFooter;

static_assert(std::endian::native == std::endian::little);

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// Whether `bytes` agree with the masked checksum that is kept at `crc`.
inline bool agree(std::span<const std::byte> bytes, const std::byte* crc) {
  return masked(crc32c(bytes)) == load<uint32_t>(crc);
}

inline bool length_agrees(const std::byte* header) {
  return masked(crc32c_of_8(header)) == load<uint32_t>(header + 8);
}

// Whether a record with a sound length field begins at `header`, of which `left` bytes of the file
// are left. REQUIRED: left >= kFrame.
inline bool sound_length(const std::byte* header, uint64_t left) {
  return load<uint64_t>(header) <= left - kFrame && length_agrees(header);
}

}  // namespace penstock::tfrecord
