#include "penstock/image/exif.h"

#include <cstdint>
#include <cstring>

namespace penstock::image {
namespace {

// Numbers of a TIFF header, in its byte order. Beyond the end they are 0.
class Tiff {
 public:
  explicit Tiff(std::span<const std::byte> bytes) : bytes_(bytes) {
    if (bytes.size() >= 2) big_ = bytes[0] == std::byte{'M'};
  }
  uint32_t number(size_t at, size_t bytes) const {
    uint32_t value = 0;
    if (at > bytes_.size() || bytes_.size() - at < bytes) return 0;
    for (size_t i = 0; i < bytes; ++i) {
      const size_t from = big_ ? at + i : at + bytes - 1 - i;
      value = value << 8 | static_cast<uint32_t>(bytes_[from]);
    }
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  bool big_ = false;
};

constexpr size_t kHead = 6;  // "Exif", 0, 0

bool has_head(std::span<const std::byte> bytes) {
  return bytes.size() > kHead && std::memcmp(bytes.data(), "Exif\0\0", kHead) == 0;
}

}  // namespace

int exif_orientation(std::span<const std::byte> exif) {
  constexpr uint32_t kOrientation = 0x0112, kShort = 3;
  const std::span<const std::byte> bytes = has_head(exif) ? exif.subspan(kHead) : exif;
  const Tiff tiff(bytes);
  if (tiff.number(2, 2) != 42) return 1;
  const size_t directory = tiff.number(4, 4);
  const uint32_t entries = tiff.number(directory, 2);
  for (uint32_t i = 0; i < entries; ++i) {
    const size_t entry = directory + 2 + size_t{12} * i;
    if (entry >= bytes.size()) break;
    if (tiff.number(entry, 2) != kOrientation || tiff.number(entry + 2, 2) != kShort) continue;
    const uint32_t value = tiff.number(entry + 8, 2);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

int jpeg_orientation(std::span<const std::byte> jpeg) {
  size_t at = 2;
  auto byte = [&](size_t i) { return static_cast<uint32_t>(jpeg[i]); };
  while (at + 4 <= jpeg.size() && byte(at) == 0xFF) {
    const uint32_t marker = byte(at + 1);
    if (marker == 0xFF) {  // filled up
      ++at;
      continue;
    }
    if (marker == 0xDA || marker == 0xD9) break;  // the scans, the end
    const size_t length = byte(at + 2) << 8 | byte(at + 3);
    if (length < 2 || jpeg.size() - at - 2 < length) break;
    const auto body = jpeg.subspan(at + 4, length - 2);
    if (marker == 0xE1 && has_head(body)) return exif_orientation(body);
    at += 2 + length;
  }
  return 1;
}

}  // namespace penstock::image
