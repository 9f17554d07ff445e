#include "penstock/io/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace penstock {
namespace {

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t of_8_sse42(const std::byte* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, 8);
  return ~static_cast<uint32_t>(_mm_crc32_u64(~uint32_t{0}, word));
}
#endif

}  // namespace

uint32_t crc32c_of_8(const std::byte* bytes) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) [[likely]]
    return of_8_sse42(bytes);
#endif
  return crc32c({bytes, 8});
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
  constexpr size_t kMaxPieceBytes = size_t{1} << 30;  // ISA-L counts in int
  uint32_t state = ~before;
  do {
    std::span<const std::byte> piece = bytes.first(std::min(bytes.size(), kMaxPieceBytes));
    // ISA-L only reads the bytes, but takes a non-const pointer.
    auto* data = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(piece.data()));
    if (!piece.empty()) state = crc32_iscsi(data, static_cast<int>(piece.size()), state);
    bytes = bytes.subspan(piece.size());
  } while (!bytes.empty());
  return ~state;
}

}  // namespace penstock
