#include "penstock/io/chunked_array.h"

#include <libdeflate.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/memory/copy.h"

namespace penstock {
namespace {

constexpr uint64_t kMaxArrayBytes = uint64_t{1} << 40;  // of a row or a chunk

uint64_t product(std::span<const int64_t> lengths, uint64_t first) {
  for (int64_t length : lengths) first *= static_cast<uint64_t>(length);
  return first;
}

uint64_t grid_length(int64_t length, int64_t chunk) {
  return static_cast<uint64_t>((length + chunk - 1) / chunk);
}

bool fits(std::span<const int64_t> lengths, uint64_t bytes) {
  for (int64_t length : lengths) {
    if (length < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(length), &bytes)) {
      return false;
    }
    if (bytes > kMaxArrayBytes) return false;
  }
  return true;
}

template <size_t kBytes>
void unshuffle_values(std::byte* to, const std::byte* from, size_t values) {
  for (size_t i = 0; i < values; ++i) {
    for (size_t j = 0; j < kBytes; ++j) to[i * kBytes + j] = from[j * values + i];
  }
}

}  // namespace

uint64_t ChunkedArray::row_bytes() const {
  return product(std::span(shape).subspan(1), size_of(dtype));
}

uint64_t ChunkedArray::chunk_bytes() const { return product(chunk, size_of(dtype)); }

uint64_t ChunkedArray::chunks_per_row() const {
  uint64_t count = 1;
  for (size_t axis = 1; axis < chunk.size(); ++axis) count *= grid_length(shape[axis], chunk[axis]);
  return count;
}

bool ChunkedArray::direct() const {
  if (chunk.empty()) return true;
  const bool written = std::ranges::all_of(chunks, [](const Chunk& c) { return c.bytes != 0; });
  return filters.empty() && written && whole_rows();
}

void ChunkedArray::write_fill(std::span<std::byte> to) const {
  if (fill.empty()) {
    std::memset(to.data(), 0, to.size());
    return;
  }
  for (size_t i = 0; i < to.size(); i += fill.size()) {
    std::memcpy(to.data() + i, fill.data(), fill.size());
  }
}

void ChunkedArray::check() const {
  auto refuse = [&](const std::string& why) {
    throw Error(Code::kInvalidArgument, "hdf5", "'" + name + "' " + why);
  };
  if (shape.empty()) refuse("is a single value, and has no rows");
  if (!is_valid(dtype)) refuse("has no valid dtype");
  if (shape[0] < 0 || !fits(std::span(shape).subspan(1), size_of(dtype))) {
    refuse("has lengths that are negative or too large");
  }
  if (!fill.empty() && fill.size() != size_of(dtype)) refuse("has a fill value of another size");
  if (filters.size() > kMaxFilters) refuse("has too many filters");
  if (chunk.empty()) {
    if (!filters.empty()) refuse("has filters but no chunks");
    if (chunks.size() != 1)
      refuse("is in one piece, with " + std::to_string(chunks.size()) + " places");
    return;
  }
  if (chunk.size() != shape.size()) refuse("has chunks with another number of axes");
  if (std::ranges::any_of(chunk, [](int64_t length) { return length <= 0; }) ||
      !fits(chunk, size_of(dtype))) {
    refuse("has chunks with lengths that are not positive or too large");
  }
  const uint64_t wanted = grid_length(shape[0], chunk[0]) * chunks_per_row();
  if (chunks.size() != wanted) {
    refuse("has " + std::to_string(chunks.size()) + " places of chunks, not " +
           std::to_string(wanted));
  }
}

struct ChunkDecoder::State {
  struct Free {
    void operator()(libdeflate_decompressor* each) const { libdeflate_free_decompressor(each); }
  };
  std::unique_ptr<libdeflate_decompressor, Free> inflate;  // made when it is needed
  std::vector<std::byte> stored, other;
};

ChunkDecoder::ChunkDecoder(const ChunkedArray& array)
    : array_(array), state_(std::make_unique<State>()) {}

ChunkDecoder::ChunkDecoder(ChunkDecoder&&) noexcept = default;
ChunkDecoder::~ChunkDecoder() = default;

void ChunkDecoder::damaged(const File& file, uint64_t chunk, const std::string& why) const {
  throw Error(Code::kDataLoss, "hdf5",
              file.path() + ": chunk " + std::to_string(chunk) + " of '" + array_.name +
                  "', at byte " + std::to_string(array_.chunks[chunk].offset) + ": " + why);
}

void ChunkDecoder::decode(File& file, uint64_t chunk, std::span<std::byte> to) {
  const ChunkedArray::Chunk& place = array_.chunks[chunk];
  if (place.bytes == 0) return array_.write_fill(to);
  // The compressed chunk may be a little larger than its values, never many times.
  if (place.bytes > 2 * to.size() + 4096) damaged(file, chunk, "its stored size is impossible");
  State& state = *state_;
  const auto other_than = [&](std::span<const std::byte> bytes) -> std::vector<std::byte>& {
    return bytes.data() == state.other.data() ? state.stored : state.other;
  };
  const auto need = [&](size_t size) {
    if (size == to.size()) return;
    damaged(
        file, chunk,
        "it has " + std::to_string(size) + " bytes of values, not " + std::to_string(to.size()));
  };
  // What the last filter makes is written to `to`.
  uint64_t left = 0;  // bit i: filter i has to be undone
  for (size_t i = 0; i < array_.filters.size(); ++i) left |= uint64_t{1} << i;
  left &= ~place.skipped;
  std::span<std::byte> in = to;
  if (left == 0) {
    need(place.bytes);
  } else {
    state.stored.resize(place.bytes);
    in = state.stored;
  }
  const File::Segment segment{place.offset, in.data(), in.size()};
  file.read({&segment, 1});
  std::span<const std::byte> bytes = in;
  while (left != 0) {
    const int i = 63 - std::countl_zero(left);
    left &= ~(uint64_t{1} << i);
    switch (array_.filters[static_cast<size_t>(i)]) {
      case ChunkedArray::Filter::kFletcher32: {
        if (bytes.size() < 4) damaged(file, chunk, "it is too short for its checksum");
        uint32_t sum = 0;
        std::memcpy(&sum, bytes.data() + bytes.size() - 4, 4);
        bytes = bytes.first(bytes.size() - 4);
        if (fletcher32(bytes) != sum) damaged(file, chunk, "its checksum does not match");
        break;
      }
      case ChunkedArray::Filter::kDeflate: {
        std::span<std::byte> out = to;
        if (left != 0) {
          // A checksum of the decompressed values may follow them.
          std::vector<std::byte>& other = other_than(bytes);
          other.resize(to.size() + 4);
          out = other;
        }
        if (state.inflate == nullptr) state.inflate.reset(libdeflate_alloc_decompressor());
        if (state.inflate == nullptr) throw std::bad_alloc();
        size_t made = 0;
        const libdeflate_result result = libdeflate_zlib_decompress(
            state.inflate.get(), bytes.data(), bytes.size(), out.data(), out.size(), &made);
        if (result == LIBDEFLATE_INSUFFICIENT_SPACE) {
          damaged(file, chunk,
                  "it has more than " + std::to_string(out.size()) + " bytes of values");
        }
        if (result != LIBDEFLATE_SUCCESS) {
          damaged(file, chunk, "it cannot be decompressed, or its checksum does not match");
        }
        bytes = out.first(made);
        break;
      }
      case ChunkedArray::Filter::kShuffle: {
        std::span<std::byte> out = to;
        if (left == 0) {
          need(bytes.size());
        } else {
          std::vector<std::byte>& other = other_than(bytes);
          other.resize(bytes.size());
          out = other;
        }
        unshuffle(out, bytes, size_of(array_.dtype));
        bytes = out;
        break;
      }
    }
  }
  need(bytes.size());
  if (bytes.data() != to.data()) std::memcpy(to.data(), bytes.data(), to.size());
  if (array_.reversed) {
    copy_byteswapped(to.data(), to.data(), to.size(), number_bytes(array_.dtype));
  }
}

void copy_row_of_chunk(const ChunkedArray& array, uint64_t row, uint64_t chunk,
                       std::span<const std::byte> decoded, std::span<std::byte> to) {
  const size_t axes = array.shape.size(), value = size_of(array.dtype);
  const uint64_t in_chunk = row % static_cast<uint64_t>(array.chunk[0]);
  const uint64_t chunk_row_bytes = array.chunk_bytes() / static_cast<uint64_t>(array.chunk[0]);
  const std::byte* from = decoded.data() + in_chunk * chunk_row_bytes;
  if (axes == 1) {
    std::memcpy(to.data(), from, value);
    return;
  }
  // Where the chunk begins along each axis of a row, and how much of it is within the array.
  uint64_t inner = chunk % array.chunks_per_row();
  std::vector<uint64_t> begin(axes), count(axes);
  for (size_t axis = axes; axis-- > 1;) {
    const uint64_t grid = grid_length(array.shape[axis], array.chunk[axis]);
    begin[axis] = inner % grid * static_cast<uint64_t>(array.chunk[axis]);
    inner /= grid;
    count[axis] = std::min(static_cast<uint64_t>(array.chunk[axis]),
                           static_cast<uint64_t>(array.shape[axis]) - begin[axis]);
  }
  // Axes at the end that the chunk covers whole are copied in one piece.
  size_t last = axes - 1;
  uint64_t piece = count[last] * value;
  while (last > 1 && array.chunk[last] == array.shape[last]) piece *= count[--last];
  std::vector<uint64_t> at(axes, 0);
  for (;;) {
    uint64_t source = 0, target = 0;
    for (size_t axis = 1; axis < axes; ++axis) {
      source = source * static_cast<uint64_t>(array.chunk[axis]) + at[axis];
      target = target * static_cast<uint64_t>(array.shape[axis]) + begin[axis] + at[axis];
    }
    std::memcpy(to.data() + target * value, from + source * value, piece);
    size_t axis = last;
    while (--axis >= 1 && ++at[axis] == count[axis]) at[axis] = 0;
    if (axis == 0) return;
  }
}

uint32_t fletcher32(std::span<const std::byte> bytes) {
  constexpr size_t kSafe = 360;  // words that cannot overflow the sums
  uint32_t first = 0, second = 0;
  auto fold = [](uint32_t sum) { return (sum & 0xffff) + (sum >> 16); };
  size_t at = 0;
  for (size_t words = bytes.size() / 2; words > 0;) {
    const size_t some = std::min(words, kSafe);
    for (size_t i = 0; i < some; ++i, at += 2) {
      first += std::to_integer<uint32_t>(bytes[at]) << 8 | std::to_integer<uint32_t>(bytes[at + 1]);
      second += first;
    }
    first = fold(first);
    second = fold(second);
    words -= some;
  }
  if (at < bytes.size()) {
    first += std::to_integer<uint32_t>(bytes[at]) << 8;
    second += first;
    first = fold(first);
    second = fold(second);
  }
  return fold(second) << 16 | fold(first);
}

void unshuffle(std::span<std::byte> to, std::span<const std::byte> from, size_t value_bytes) {
  if (from.empty()) return;  // memcpy takes no null pointer
  const size_t values = from.size() / value_bytes;
  switch (value_bytes) {
    case 1:
      std::memcpy(to.data(), from.data(), from.size());
      return;
    case 2:
      unshuffle_values<2>(to.data(), from.data(), values);
      break;
    case 4:
      unshuffle_values<4>(to.data(), from.data(), values);
      break;
    case 8:
      unshuffle_values<8>(to.data(), from.data(), values);
      break;
    default:
      for (size_t j = 0; j < value_bytes; ++j) {
        for (size_t i = 0; i < values; ++i) to[i * value_bytes + j] = from[j * values + i];
      }
  }
  const size_t whole = values * value_bytes;
  std::memcpy(to.data() + whole, from.data() + whole, from.size() - whole);
}

}  // namespace penstock
