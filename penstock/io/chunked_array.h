#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/io/file.h"
#include "penstock/memory/dtype.h"
#include "penstock/memory/tensor.h"

namespace penstock {

// An array in a file, stored in one piece or in chunks of one shape, as HDF5 stores a data set. The
// format's own library finds the places (libhdf5, through h5py); reading and decompressing are done
// here, in any number of threads. Immutable.
struct ChunkedArray {
  // Filters in the order in which the writer applied them (HDF5's filter pipeline).
  enum class Filter : uint8_t { kShuffle = 0, kDeflate = 1, kFletcher32 = 2 };
  static constexpr size_t kMaxFilters = 32;
  // In the file. bytes 0: the chunk was never written, and has the fill value.
  struct Chunk {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint64_t skipped = 0;  // bit i: filter i was not applied to this chunk
  };

  std::string name;  // in the file, for errors
  DType dtype = DType::kUint8;
  bool reversed = false;  // the values have the other byte order
  Shape shape;            // the first axis is that of the rows
  // The lengths of a chunk, as many as axes. Empty: the array is in one piece at chunks[0].
  Shape chunk;
  std::vector<Filter> filters;
  // By row-major position in the grid of chunks.
  std::vector<Chunk> chunks;
  std::vector<std::byte> fill;  // one value; empty: zeros

  uint64_t rows() const { return static_cast<uint64_t>(shape[0]); }
  uint64_t row_bytes() const;    // of the array
  uint64_t chunk_bytes() const;  // of a chunk's values
  uint64_t chunks_per_row() const;
  // Rows can be read from the file without decoding whole chunks.
  bool direct() const;
  // Chunks have whole rows, so that a decoded chunk is its rows, one after the other.
  bool whole_rows() const { return std::equal(shape.begin() + 1, shape.end(), chunk.begin() + 1); }

  // Writes the fill value, `to` being a number of values.
  void write_fill(std::span<std::byte> to) const;

  // Error kInvalidArgument, which names the array: the shapes do not match, or a value is out of
  // range.
  void check() const;
};

// Reads and decodes chunks of one array. One thread; the array outlives it.
class ChunkDecoder {
 public:
  explicit ChunkDecoder(const ChunkedArray& array);
  ChunkDecoder(ChunkDecoder&&) noexcept;
  ~ChunkDecoder();

  // Decodes a chunk into `to`, of chunk_bytes(), in the machine's byte order. Error kDataLoss,
  // which names file, array, chunk and byte: the bytes are damaged or too few; kSystem.
  void decode(File& file, uint64_t chunk, std::span<std::byte> to);

 private:
  struct State;

  [[noreturn]] void damaged(const File& file, uint64_t chunk, const std::string& why) const;

  const ChunkedArray& array_;
  std::unique_ptr<State> state_;
};

// Copies row `row` of the array, which is within the decoded chunk number `chunk`, to its place in
// `to`, of row_bytes(): all of the row's values that the chunk has.
void copy_row_of_chunk(const ChunkedArray& array, uint64_t row, uint64_t chunk,
                       std::span<const std::byte> decoded, std::span<std::byte> to);

// The checksum of HDF5's filter fletcher32: Fletcher's sums modulo 65535 over big-endian 16-bit
// words (J. G. Fletcher, "An Arithmetic Checksum for Serial Transmissions", 1982).
uint32_t fletcher32(std::span<const std::byte> bytes);
// Undoes HDF5's filter shuffle: byte j of value i is at j * values + i. Bytes after the last whole
// value are copied.
void unshuffle(std::span<std::byte> to, std::span<const std::byte> from, size_t value_bytes);

}  // namespace penstock
