#pragma once

#include <bit>
#include <cstdint>

namespace penstock {

// Conversions of 16-bit numbers, given by their bits: IEEE 754 binary16 (float16) and the upper
// half of a float (bfloat16). Conversions to 16 bits round to nearest, ties to even; values that
// are too large become infinite, and a NaN stays a NaN.

constexpr float float16_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = half >> 10 & 0x1F;
  const uint32_t fraction = half & 0x3FF;
  if (exponent == 0) {  // zero, or below the smallest normal number
    const float value = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  const uint32_t wide = exponent == 0x1F ? 0xFF : exponent + 112;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

constexpr uint16_t float_to_float16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  uint32_t half;
  if (magnitude > 0x7F800000) {
    half = 0x7E00;
  } else if (magnitude >= 0x477FF000) {  // rounds to more than 65504
    half = 0x7C00;
  } else if (magnitude < 0x38800000) {  // below 2^-14: an addition puts its last bit in place
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000;
  } else {
    half = (magnitude + 0xFFF + (magnitude >> 13 & 1) - (112u << 23)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

constexpr float bfloat16_to_float(uint16_t half) {
  return std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
}

constexpr uint16_t float_to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

}  // namespace penstock
