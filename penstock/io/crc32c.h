#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

// CRC-32C (Castagnoli; RFC 3720, appendix B.4) of what gave `before` followed by `bytes`: a long
// text may be given in pieces. By ISA-L, which picks the machine's instructions. Any thread.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

// The same of eight bytes, several times faster: what a length field has.
uint32_t crc32c_of_8(const std::byte* bytes);

// The form in which TFRecord keeps a checksum, so that the checksum of bytes that themselves
// contain checksums is no special value.
constexpr uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u; }

}  // namespace penstock
