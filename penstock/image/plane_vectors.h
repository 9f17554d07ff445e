#pragma once

// Vectors of x86 for the arithmetic on planes.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>

#define PENSTOCK_AVX2 __attribute__((target("avx2")))
#define PENSTOCK_AVX2_PART __attribute__((target("avx2"), always_inline)) inline
#define PENSTOCK_AVX512 __attribute__((target("avx512f,avx512bw")))

namespace penstock::image {

PENSTOCK_AVX2_PART __m256i load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
PENSTOCK_AVX2_PART __m128i load_half(const void* from) {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}
PENSTOCK_AVX2_PART void store(void* to, __m256i value) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), value);
}

}  // namespace penstock::image
#endif
