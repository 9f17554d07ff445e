#include "penstock/train/server/gradient.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "penstock/base/error.h"
#include "penstock/base/half.h"
#include "penstock/train/kernels.h"

namespace penstock::train {
namespace {

struct Pair {
  uint32_t index;
  float value;
};
static_assert(sizeof(Pair) == 8);

Pair pair_at(std::span<const std::byte> bytes, size_t i) {
  Pair pair;
  std::memcpy(&pair, bytes.data() + i * sizeof pair, sizeof pair);
  return pair;
}

Error damaged_push(const std::string& why) { return Error(Code::kDataLoss, "push", why); }

// For ordering by magnitude; NaN is the largest.
uint32_t magnitude(float value) { return std::bit_cast<uint32_t>(value) & 0x7FFFFFFF; }

}  // namespace

size_t Gradient::bytes_of(Encoding encoding, size_t count) {
  switch (encoding) {
    case Encoding::kFloat32:
      return count * sizeof(float);
    case Encoding::kFloat16:
    case Encoding::kBfloat16:
      return count * sizeof(uint16_t);
    case Encoding::kTopK:
      return count * sizeof(Pair);
    case Encoding::kRuns:  // the maximum: every other float
      return sizeof(uint64_t) + (count + 1) / 2 * sizeof(Run) + count * sizeof(float);
  }
  return 0;
}

Gradient::Gradient(Encoding encoding, std::span<const std::byte> bytes, size_t floats)
    : encoding_(encoding), bytes_(bytes), floats_(floats) {
  if (encoding == Encoding::kRuns) {
    bytes_ = bytes.subspan(take_runs(bytes));
    if (bytes_.size() == carried() * sizeof(float)) return;
    throw damaged_push("runs of " + std::to_string(carried()) + " floats with " +
                       std::to_string(bytes_.size()) + " bytes");
  }
  if (encoding != Encoding::kTopK) {
    if (bytes.size() == bytes_of(encoding, floats)) return;
    throw damaged_push("a gradient of " + std::to_string(bytes.size()) + " bytes; " +
                       std::to_string(floats) + " floats take " +
                       std::to_string(bytes_of(encoding, floats)));
  }
  const size_t pairs = bytes.size() / sizeof(Pair);
  if (bytes.size() % sizeof(Pair) != 0 || pairs > floats) {
    throw damaged_push("a gradient of " + std::to_string(bytes.size()) +
                       " bytes is not a list of pairs");
  }
  uint64_t next = 0;
  for (size_t i = 0; i < pairs; ++i) {
    const uint32_t index = pair_at(bytes, i).index;
    if (index < next || index >= floats) {
      throw damaged_push("pair " + std::to_string(i) + " has index " + std::to_string(index) +
                         "; indices ascend and are below " + std::to_string(floats));
    }
    next = uint64_t{index} + 1;
  }
}

Gradient::Gradient(std::span<const std::byte> runs, std::span<const float> values, size_t floats)
    : encoding_(Encoding::kRuns), bytes_(std::as_bytes(values)), floats_(floats) {
  if (take_runs(runs) != runs.size()) throw damaged_push("bytes after the runs");
  if (carried() > values.size()) throw damaged_push("the runs have more floats than were sent");
}

// Parses the runs; returns the offset of their end.
size_t Gradient::take_runs(std::span<const std::byte> bytes) {
  uint64_t count = 0;
  if (bytes.size() < sizeof count) throw damaged_push("the number of runs is missing");
  std::memcpy(&count, bytes.data(), sizeof count);
  const auto from = bytes.subspan(sizeof count);
  if (count > from.size() / sizeof(Run)) {
    throw damaged_push(std::to_string(count) + " runs in " + std::to_string(bytes.size()) +
                       " bytes");
  }
  pieces_.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    Run run;
    std::memcpy(&run, from.data() + i * sizeof run, sizeof run);
    const size_t end = size_t{run.begin} + run.floats;
    if (run.floats == 0 || end > floats_ || (i > 0 && run.begin <= pieces_.back().end)) {
      throw damaged_push("run " + std::to_string(i) + " is of " + std::to_string(run.floats) +
                         " floats at " + std::to_string(run.begin) +
                         "; runs ascend, with gaps between them, and end by " +
                         std::to_string(floats_));
    }
    pieces_.push_back({run.begin, end, carried()});
  }
  return sizeof count + count * sizeof(Run);
}

std::vector<std::byte> Gradient::runs() const {
  if (whole()) return {};
  const uint64_t count = pieces_.size();
  std::vector<std::byte> bytes(sizeof count + count * sizeof(Run));
  std::memcpy(bytes.data(), &count, sizeof count);
  for (size_t i = 0; i < count; ++i) {
    const Run run{static_cast<uint32_t>(pieces_[i].begin),
                  static_cast<uint32_t>(pieces_[i].end - pieces_[i].begin)};
    std::memcpy(bytes.data() + sizeof count + i * sizeof run, &run, sizeof run);
  }
  return bytes;
}

std::span<const std::byte> Gradient::values() const {
  return whole() ? bytes_ : bytes_.first(carried() * sizeof(float));
}

std::span<const float> Gradient::at_pieces(size_t begin, size_t n, std::span<float> into) const {
  const auto* values = reinterpret_cast<const float*>(bytes_.data());
  // The first piece that ends after `begin`.
  auto piece = std::ranges::upper_bound(pieces_, begin, {}, &Piece::end);
  if (piece != pieces_.end() && piece->begin <= begin && begin + n <= piece->end) {
    return {values + piece->at + (begin - piece->begin), n};
  }
  std::ranges::fill(into, 0.0f);
  for (; piece != pieces_.end() && piece->begin < begin + n; ++piece) {
    const size_t first = std::max(begin, piece->begin), last = std::min(begin + n, piece->end);
    std::copy_n(values + piece->at + (first - piece->begin), last - first,
                into.begin() + static_cast<ptrdiff_t>(first - begin));
  }
  return into;
}

std::span<const float> Gradient::at(size_t begin, size_t n, std::span<float> scratch) const {
  const auto into = scratch.first(encoding_ == Encoding::kFloat32 ? 0 : n);
  switch (encoding_) {
    case Encoding::kFloat32:
      return {reinterpret_cast<const float*>(bytes_.data()) + begin, n};
    case Encoding::kFloat16:
    case Encoding::kBfloat16: {
      const std::byte* from = bytes_.data() + begin * sizeof(uint16_t);
      const bool brain = encoding_ == Encoding::kBfloat16;
      for (size_t i = 0; i < n; ++i) {
        uint16_t half;
        std::memcpy(&half, from + i * sizeof half, sizeof half);
        into[i] = brain ? bfloat16_to_float(half) : float16_to_float(half);
      }
      return into;
    }
    case Encoding::kRuns:
      return at_pieces(begin, n, into);
    case Encoding::kTopK:
      break;
  }
  std::ranges::fill(into, 0.0f);
  size_t low = 0, high = bytes_.size() / sizeof(Pair);
  while (low < high) {  // the first pair at or after `begin`
    const size_t middle = (low + high) / 2;
    if (pair_at(bytes_, middle).index < begin) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  for (; low < bytes_.size() / sizeof(Pair); ++low) {
    const Pair pair = pair_at(bytes_, low);
    // The bytes may lie in memory that the worker can still write.
    if (pair.index < begin || pair.index >= begin + n) break;
    into[pair.index - begin] = pair.value;
  }
  return into;
}

void require_reach(Encoding encoding, uint64_t floats) {
  constexpr uint64_t kMax = uint64_t{1} << 32;
  const bool indexed = encoding == Encoding::kTopK || encoding == Encoding::kRuns;
  if (!indexed || floats < kMax) return;
  throw Error(Code::kInvalidArgument, "push",
              "a shard has " + std::to_string(floats) + " floats; for " +
                  (encoding == Encoding::kTopK ? "top_k" : "rows") +
                  " it may have fewer than 2^32: serve with more shards");
}

std::vector<std::byte> encode_runs(const GradientParts& parts, const Range& range,
                                   std::span<float> apart) {
  std::vector<Run> runs;
  std::vector<std::span<const float>> values;
  size_t floats = 0;
  auto piece = std::ranges::upper_bound(parts.pieces(), range.begin, {}, [](const auto& each) {
    return each.at + each.values.size();
  });
  for (; piece != parts.pieces().end() && piece->at < range.end; ++piece) {
    const size_t begin = std::max(piece->at, range.begin);
    const size_t end = std::min(piece->at + piece->values.size(), range.end);
    if (begin >= end) continue;  // an empty block
    const auto size = static_cast<uint32_t>(end - begin);
    const auto at = static_cast<uint32_t>(begin - range.begin);
    if (!runs.empty() && size_t{runs.back().begin} + runs.back().floats == at) {
      runs.back().floats += size;
    } else {
      runs.push_back({at, size});
    }
    values.push_back(piece->values.subspan(begin - piece->at, size));
    floats += size;
  }
  const uint64_t count = runs.size();
  std::vector<std::byte> message(sizeof count + count * sizeof(Run));
  std::memcpy(message.data(), &count, sizeof count);
  if (count > 0) std::memcpy(message.data() + sizeof count, runs.data(), count * sizeof(Run));
  auto* to = reinterpret_cast<std::byte*>(apart.data());
  if (apart.empty()) {
    const size_t head = message.size();
    message.resize(head + floats * sizeof(float));
    to = message.data() + head;
  }
  for (const auto& each : values) {
    std::memcpy(to, each.data(), each.size_bytes());
    to += each.size_bytes();
  }
  return message;
}

void encode_half(Encoding encoding, std::span<const float> values, std::span<std::byte> into) {
  std::byte* to = into.data();
  const bool brain = encoding == Encoding::kBfloat16;
  for (const float value : values) {
    const uint16_t half = brain ? float_to_bfloat16(value) : float_to_float16(value);
    std::memcpy(to, &half, sizeof half);
    to += sizeof half;
  }
}

double sum_of_squares(const Gradient& gradient) {
  std::array<float, kernels::kPiece> scratch;
  double sum = 0;
  for (size_t begin = 0; begin < gradient.floats(); begin += scratch.size()) {
    const size_t n = std::min(scratch.size(), gradient.floats() - begin);
    sum += kernels::sum_of_squares(gradient.at(begin, n, scratch));
  }
  return sum;
}

std::vector<std::byte> encode_top_k(std::span<const float> values, std::span<float> residual,
                                    size_t k) {
  k = std::clamp<size_t>(k, 1, values.size());
  std::vector<uint32_t> sizes(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    residual[i] += values[i];
    sizes[i] = magnitude(residual[i]);
  }
  std::nth_element(sizes.begin(), sizes.begin() + static_cast<ptrdiff_t>(k - 1), sizes.end(),
                   std::greater<>());
  const uint32_t least = sizes[k - 1];
  size_t above = 0;
  for (const float value : residual) above += magnitude(value) > least;
  size_t equal = k - above;
  std::vector<std::byte> bytes;
  bytes.reserve(k * sizeof(Pair));
  for (size_t i = 0; i < residual.size(); ++i) {
    const uint32_t size = magnitude(residual[i]);
    if (size < least || (size == least && equal == 0)) continue;
    if (size == least) --equal;
    const Pair pair{static_cast<uint32_t>(i), residual[i]};
    const auto* first = reinterpret_cast<const std::byte*>(&pair);
    bytes.insert(bytes.end(), first, first + sizeof pair);
    residual[i] = 0;
  }
  return bytes;
}

}  // namespace penstock::train
