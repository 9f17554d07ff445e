#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "penstock/train/gradient_parts.h"
#include "penstock/train/server/partition.h"

namespace penstock::train {

// How the floats of a gradient travel.
enum class Encoding : uint32_t { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2, kTopK = 3, kRuns = 4 };
inline constexpr uint32_t kEncodings = 5;

// Floats of a shard's range, from `begin` on, that a push of rows changes.
struct Run {
  uint32_t begin = 0;
  uint32_t floats = 0;
};

// A shard's part of a gradient as it arrived: bytes that somebody else owns and wrote, whatever
// they say. A value; any thread.
//
// kTopK: pairs of an index (uint32) and a float, ascending; what is not there is zero.
// kRuns: how many runs (uint64), the runs, ascending with gaps between them, and their floats, one
// run's after the other's; what is not there is not to be touched.
class Gradient {
 public:
  Gradient() = default;
  // Error kDataLoss: not as many bytes as that many floats take; indices that do not ascend, or are
  // not below `floats`.
  Gradient(Encoding encoding, std::span<const std::byte> bytes, size_t floats);
  // kRuns whose floats lie apart from the runs: the first of `values`, which may have more.
  Gradient(std::span<const std::byte> runs, std::span<const float> values, size_t floats);

  size_t floats() const { return floats_; }
  // Whether it is of all of them, or only of pieces().
  bool whole() const { return encoding_ != Encoding::kRuns; }
  struct Piece {
    size_t begin, end;
    size_t at;  // of the floats that came
  };
  std::span<const Piece> pieces() const { return pieces_; }
  size_t carried() const { return pieces_.empty() ? 0 : end_of_values(pieces_.back()); }
  // Floats [begin, begin + n), in place if they lie there as they are, else in `scratch`. Those
  // that are in no piece are zero.
  std::span<const float> at(size_t begin, size_t n, std::span<float> scratch) const;

  // Bytes of so many floats; of kTopK, of so many pairs; of kRuns, the most that so many take.
  static size_t bytes_of(Encoding encoding, size_t count);

 private:
  static size_t end_of_values(const Piece& piece) { return piece.at + piece.end - piece.begin; }
  size_t take_runs(std::span<const std::byte> bytes);
  std::span<const float> at_pieces(size_t begin, size_t n, std::span<float> into) const;

  Encoding encoding_ = Encoding::kFloat32;
  std::span<const std::byte> bytes_;  // of kRuns: the floats
  size_t floats_ = 0;
  std::vector<Piece> pieces_;
};

// A worker's side. kRuns of what is in a range, of up to 2^32 floats; their floats go to `apart`
// if that is anything (as large as the range), else they come after the runs.
std::vector<std::byte> encode_runs(const GradientParts& parts, const Range& range,
                                   std::span<float> apart);

// Rounded values are those that arrive; what is too large for a float16 becomes
// infinite, and is found by the look at what is not finite. `into` has bytes_of(encoding, n) bytes.
void encode_half(Encoding encoding, std::span<const float> values, std::span<std::byte> into);

// The sum of squares of what arrives.
double sum_of_squares(const Gradient& gradient);

// The k elements of values + residual with the largest magnitudes; what is left of the sum is the
// new residual (error feedback; Stich et al. 2018). Elements of the same magnitude as the smallest
// that is sent are taken in order. Values that are not finite are sent first.
std::vector<std::byte> encode_top_k(std::span<const float> values, std::span<float> residual,
                                    size_t k);

}  // namespace penstock::train
