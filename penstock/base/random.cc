#include "penstock/base/random.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace penstock::philox {
namespace {

#if defined(__x86_64__)

#define PENSTOCK_AVX2_PART __attribute__((target("avx2"), always_inline)) inline

// A word is in the low half of a 64-bit lane, which vpmuludq multiplies. The high halves hold
// garbage until the end: no operation below moves them into a low half.
struct Lanes {
  __m256i word[4];
};

PENSTOCK_AVX2_PART void one_round(Lanes& x, __m256i key0, __m256i key1) {
  const __m256i multiplier0 = _mm256_set1_epi64x(kMultiplier0);
  const __m256i multiplier1 = _mm256_set1_epi64x(kMultiplier1);
  __m256i product0 = _mm256_mul_epu32(multiplier0, x.word[0]);
  __m256i product1 = _mm256_mul_epu32(multiplier1, x.word[2]);
  x.word[0] = _mm256_xor_si256(_mm256_srli_epi64(product1, 32), _mm256_xor_si256(x.word[1], key0));
  x.word[1] = product1;
  x.word[2] = _mm256_xor_si256(_mm256_srli_epi64(product0, 32), _mm256_xor_si256(x.word[3], key1));
  x.word[3] = product0;
}

// Four blocks, one per lane, become 16 words in a row.
PENSTOCK_AVX2_PART void store(uint32_t* out, const Lanes& x) {
  // A lane's words 0 and 1 (2 and 3) become one 64-bit value...
  __m256i front = _mm256_blend_epi32(x.word[0], _mm256_slli_epi64(x.word[1], 32), 0xAA);
  __m256i back = _mm256_blend_epi32(x.word[2], _mm256_slli_epi64(x.word[3], 32), 0xAA);
  // ...and a lane's two values stand side by side: blocks 0 and 2, then 1 and 3.
  __m256i even = _mm256_unpacklo_epi64(front, back);
  __m256i odd = _mm256_unpackhi_epi64(front, back);
  auto* to = reinterpret_cast<__m256i*>(out);
  _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
  _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
}

// Whole groups of kGroup blocks; returns how many blocks were made.
constexpr size_t kSets = 2, kGroup = 4 * kSets;  // two independent chains keep the ports busy

PENSTOCK_AVX2_PART size_t fill_body(uint32_t* out, size_t blocks, Key key, Counter counter) {
  size_t done = 0;
  for (; done + kGroup <= blocks; done += kGroup) {
    Lanes x[kSets];
    for (size_t s = 0; s < kSets; ++s) {
      uint32_t first = counter[0] + static_cast<uint32_t>(done + 4 * s);
      x[s] = {{_mm256_setr_epi64x(first, first + 1, first + 2, first + 3),
               _mm256_set1_epi64x(counter[1]), _mm256_set1_epi64x(counter[2]),
               _mm256_set1_epi64x(counter[3])}};
    }
    Key k = key;
    for (int round = 0; round < kRounds; ++round) {
      __m256i key0 = _mm256_set1_epi64x(k[0]), key1 = _mm256_set1_epi64x(k[1]);
      for (Lanes& set : x) one_round(set, key0, key1);
      k = {k[0] + kWeyl0, k[1] + kWeyl1};
    }
    for (size_t s = 0; s < kSets; ++s) store(out + 4 * (done + 4 * s), x[s]);
  }
  return done;
}

__attribute__((target("avx2"))) size_t fill_avx2(uint32_t* out, size_t blocks, Key key,
                                                 Counter counter) {
  return fill_body(out, blocks, key, counter);
}

// The same vectors: twice the registers and three-operand logic make it a quarter faster.
__attribute__((target("avx2,avx512f,avx512vl"))) size_t fill_avx512(uint32_t* out, size_t blocks,
                                                                    Key key, Counter counter) {
  return fill_body(out, blocks, key, counter);
}

size_t fill_groups(uint32_t* out, size_t blocks, Key key, Counter counter) {
  if (__builtin_cpu_supports("avx512vl")) return fill_avx512(out, blocks, key, counter);
  if (__builtin_cpu_supports("avx2")) return fill_avx2(out, blocks, key, counter);
  return 0;
}

#else

// Eight blocks at a time, in loops that compilers vectorise.
constexpr size_t kGroup = 8;

size_t fill_groups(uint32_t* out, size_t blocks, Key key, Counter counter) {
  size_t done = 0;
  for (; done + kGroup <= blocks; done += kGroup) {
    uint32_t x[4][kGroup];
    for (uint32_t i = 0; i < kGroup; ++i) {
      x[0][i] = counter[0] + static_cast<uint32_t>(done) + i;
      x[1][i] = counter[1];
      x[2][i] = counter[2];
      x[3][i] = counter[3];
    }
    Key k = key;
    for (int round = 0; round < kRounds; ++round) {
      for (size_t i = 0; i < kGroup; ++i) {
        uint64_t product0 = uint64_t{kMultiplier0} * x[0][i];
        uint64_t product1 = uint64_t{kMultiplier1} * x[2][i];
        x[0][i] = static_cast<uint32_t>(product1 >> 32) ^ x[1][i] ^ k[0];
        x[1][i] = static_cast<uint32_t>(product1);
        x[2][i] = static_cast<uint32_t>(product0 >> 32) ^ x[3][i] ^ k[1];
        x[3][i] = static_cast<uint32_t>(product0);
      }
      k = {k[0] + kWeyl0, k[1] + kWeyl1};
    }
    for (size_t i = 0; i < kGroup; ++i) {
      for (size_t w = 0; w < 4; ++w) out[4 * (done + i) + w] = x[w][i];
    }
  }
  return done;
}

#endif

}  // namespace

void fill(uint32_t* out, size_t n, Key key, Counter counter) {
  size_t done = fill_groups(out, n / 4, key, counter);
  out += 4 * done;
  n -= 4 * done;
  counter[0] += static_cast<uint32_t>(done);
  for (; n >= 4; n -= 4, out += 4, ++counter[0]) {
    Block words = block(counter, key);
    std::memcpy(out, words.data(), sizeof words);
  }
  if (n > 0) {
    Block words = block(counter, key);
    std::memcpy(out, words.data(), n * sizeof words[0]);
  }
}

}  // namespace penstock::philox
