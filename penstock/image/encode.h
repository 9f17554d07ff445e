#pragma once

#include <cstdint>
#include <vector>

#include "penstock/image/image.h"

namespace penstock::image {

enum class Encoding : uint8_t { kJpeg, kPng };

struct EncodeOptions {
  Encoding as = Encoding::kJpeg;
  int quality = 90;  // of JPEGs, 1 to 100
};

inline constexpr int kMaxJpegSide = 65500;

// The bytes of a file, by libjpeg-turbo (accurate DCT, colours at half the resolution) or libpng.
// REQUIRED: at least a pixel; 1 or 3 channels, of PNGs also 2 or 4, the last of which is alpha; no
// side of a JPEG is longer than kMaxJpegSide. May throw std::bad_alloc.
void encode(const ImageView& pixels, const EncodeOptions& options, std::vector<uint8_t>& to);

}  // namespace penstock::image
