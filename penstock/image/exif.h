#pragma once

#include <cstddef>
#include <span>

namespace penstock::image {

// The orientation, 1 to 8, that a JPEG's first Exif segment gives, or 1. Damaged segments give 1.
// The bytes are as Exif 2.3 has them (JEITA CP-3451C, tag 0x0112).
int exif_orientation(std::span<const std::byte> jpeg);

}  // namespace penstock::image
