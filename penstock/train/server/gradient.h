#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "penstock/train/gradient_parts.h"
#include "penstock/train/layout.h"

namespace penstock::train {

// Encoding of a gradient's floats in a message.
enum class Encoding : uint32_t { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2, kTopK = 3, kRuns = 4 };
inline constexpr uint32_t kEncodings = 5;

// Floats of a shard's range, from `begin` on, that a push of rows changes.
struct Run {
  uint32_t begin = 0;
  uint32_t floats = 0;
};

// A shard's part of a gradient, as received: another process owns and writes the bytes, so they may
// hold anything. A value. Threads: any.
//
// kTopK: pairs of an index (uint32) and a float, ascending; other floats are zero.
// kRuns: the number of runs (uint64), the runs, ascending with gaps between them, then the floats
// of all runs in order; other floats are left untouched.
class Gradient {
 public:
  Gradient() = default;
  // Error kDataLoss: the number of bytes does not match `floats`; indices that do not ascend or are
  // not below `floats`.
  Gradient(Encoding encoding, std::span<const std::byte> bytes, size_t floats);
  // kRuns with the floats in other memory than the runs: the first of `values`, which may have
  // more.
  Gradient(std::span<const std::byte> runs, std::span<const float> values, size_t floats);

  size_t floats() const { return floats_; }
  // Whether the gradient covers all floats, or only pieces().
  bool whole() const { return encoding_ != Encoding::kRuns; }
  struct Piece {
    size_t begin, end;
    size_t at;  // offset in the received floats
  };
  std::span<const Piece> pieces() const { return pieces_; }
  size_t carried() const { return pieces_.empty() ? 0 : end_of_values(pieces_.back()); }
  // Floats [begin, begin + n): in place if they lie there unencoded, else in `scratch`. Floats
  // outside all pieces are zero.
  std::span<const float> at(size_t begin, size_t n, std::span<float> scratch) const;

  // The same gradient for another process: runs(), then values(). runs() is empty unless the
  // encoding is kRuns.
  Encoding encoding() const { return encoding_; }
  std::vector<std::byte> runs() const;
  std::span<const std::byte> values() const;

  // Bytes of `count` floats; for kTopK, of `count` pairs; for kRuns, the maximum for `count`
  // floats.
  static size_t bytes_of(Encoding encoding, size_t count);

 private:
  static size_t end_of_values(const Piece& piece) { return piece.at + piece.end - piece.begin; }
  size_t take_runs(std::span<const std::byte> bytes);
  std::span<const float> at_pieces(size_t begin, size_t n, std::span<float> into) const;

  Encoding encoding_ = Encoding::kFloat32;
  std::span<const std::byte> bytes_;  // for kRuns: the floats
  size_t floats_ = 0;
  std::vector<Piece> pieces_;
};

// Error kInvalidArgument: the encoding's 32-bit indices do not reach all floats of a shard.
void require_reach(Encoding encoding, uint64_t floats);

// For a worker: encodes as kRuns the parts within a range of up to 2^32 floats. The floats go to
// `apart` (as large as the range) if that is not empty, else after the runs.
std::vector<std::byte> encode_runs(const GradientParts& parts, const Range& range,
                                   std::span<float> apart);

// Rounds values to 16 bits. A value too large for float16 becomes infinity, which the check for
// non-finite values finds. `into` has bytes_of(encoding, n) bytes.
void encode_half(Encoding encoding, std::span<const float> values, std::span<std::byte> into);

// The sum of squares of the values as received.
double sum_of_squares(const Gradient& gradient);

// Encodes the k elements of values + residual with the largest magnitudes; the rest becomes the new
// residual (error feedback; Stich et al. 2018). Among elements with the smallest sent magnitude the
// first are taken. Non-finite values are sent first.
std::vector<std::byte> encode_top_k(std::span<const float> values, std::span<float> residual,
                                    size_t k);

}  // namespace penstock::train
