#pragma once

#include <cstddef>
#include <span>

namespace penstock::image {

// The orientation, 1 to 8, that Exif bytes give, or 1. Damaged bytes give 1. They are as Exif 2.3
// has them (JEITA CP-3451C, tag 0x0112), with or without "Exif", 0, 0 in front.
int exif_orientation(std::span<const std::byte> exif);
// That of a JPEG's first Exif segment.
int jpeg_orientation(std::span<const std::byte> jpeg);

}  // namespace penstock::image
