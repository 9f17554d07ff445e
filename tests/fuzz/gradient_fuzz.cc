// Any bytes as a gradient on the wire: DataLoss, or floats that are the same however they are cut,
// and whose sum of squares is theirs.
//
//   bytes  0: encoding   1: floats of the shard, twice   2: of a run's values that lie apart
//          3 on: the gradient
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fuzz/require.h"
#include "penstock/base/error.h"
#include "penstock/train/server/gradient.h"

using namespace penstock;
using namespace penstock::train;

namespace {

constexpr size_t kHead = 3;

// Copies to memory that a float may lie in, as the service does.
std::span<const std::byte> aligned(std::vector<float>& memory, std::span<const std::byte> bytes) {
  memory.resize(bytes.size() / sizeof(float) + 1);
  if (!bytes.empty()) std::memcpy(memory.data(), bytes.data(), bytes.size());
  return std::as_bytes(std::span(memory)).first(bytes.size());
}

std::vector<float> read(const Gradient& gradient, size_t step) {
  std::vector<float> all, scratch(step);
  for (size_t begin = 0; begin < gradient.floats(); begin += step) {
    const size_t count = std::min(step, gradient.floats() - begin);
    const std::span<const float> some = gradient.at(begin, count, scratch);
    REQUIRE(some.size() == count);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < kHead) return 0;
  const auto encoding = static_cast<Encoding>(data[0] % kEncodings);
  const size_t floats = 2 * size_t{data[1]};
  std::vector<float> memory;
  const auto bytes = aligned(memory, std::as_bytes(std::span(data + kHead, size - kHead)));
  const std::vector<float> apart(data[2], 0.5f);
  const bool runs_alone = encoding == Encoding::kRuns && data[2] > 0;
  try {
    const Gradient gradient =
        runs_alone ? Gradient(bytes, apart, floats) : Gradient(encoding, bytes, floats);
    REQUIRE(gradient.floats() == floats);
    const std::vector<float> all = read(gradient, floats + 1);
    REQUIRE(all.size() == floats);
    for (size_t step : {1, 3, 16}) REQUIRE(same_bits(read(gradient, step), all));
    std::vector<bool> covered(floats, gradient.whole());
    size_t next = 0;
    for (const Gradient::Piece& piece : gradient.pieces()) {
      REQUIRE(piece.begin >= next && piece.begin < piece.end && piece.end <= floats);
      next = piece.end;
      for (size_t i = piece.begin; i < piece.end; ++i) covered[i] = true;
    }
    double sum = 0;
    bool finite = true;
    for (size_t i = 0; i < floats; ++i) {
      if (!covered[i]) REQUIRE(std::bit_cast<uint32_t>(all[i]) == 0);
      sum += static_cast<double>(all[i]) * all[i];
      finite = finite && std::isfinite(all[i]);
    }
    const double theirs = sum_of_squares(gradient);
    REQUIRE(finite ? std::abs(theirs - sum) <= 1e-3 * sum : !std::isfinite(theirs));
  } catch (const Error& error) {
    REQUIRE(error.code() == Code::kDataLoss);
    REQUIRE(!std::string(error.what()).empty());
  }
  return 0;
}
