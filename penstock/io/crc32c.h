#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

// CRC-32C (Castagnoli; RFC 3720, appendix B.4). `before`: the CRC of preceding bytes, to compute it
// in pieces. By ISA-L, which picks the machine's instructions. Any thread.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

// The same for eight bytes, several times faster; for length fields.
uint32_t crc32c_of_8(const std::byte* bytes);

// The form in which TFRecord stores a checksum, so that the checksum of bytes that contain
// checksums is not a special value.
constexpr uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u; }

}  // namespace penstock
