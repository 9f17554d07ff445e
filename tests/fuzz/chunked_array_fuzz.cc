// Any bytes as a stored chunk of an HDF5 data set, with any filters: it is DataLoss, or has as many
// values as a chunk. What was decoded before does not matter.
//
//   bytes  0: dtype   1: bit 0 values in the other byte order, the rest the number of filters
//          2: filters, two bits each   3: filters that the chunk skipped   4, 5: rows and columns
//          6: what is wrong with the stated size   7 on: the file
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cpp/io/memory_files.h"
#include "fuzz/require.h"
#include "penstock/io/chunked_array.h"

using namespace penstock;

namespace {

constexpr size_t kHead = 7;
constexpr std::array kDTypes{DType::kUint8,   DType::kInt16, DType::kFloat32,
                             DType::kFloat64, DType::kBool,  DType::kComplex64};

using Values = std::vector<std::byte>;

// Nothing: damaged.
std::optional<Values> decoded(ChunkDecoder& decoder, File& file, uint64_t chunk, size_t bytes) {
  Values values(bytes);
  try {
    decoder.decode(file, chunk, values);
    return values;
  } catch (const Error& error) {
    REQUIRE(error.code() == Code::kDataLoss);
    REQUIRE(!std::string(error.what()).empty());
    return std::nullopt;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < kHead) return 0;
  ChunkedArray array;
  array.name = "/X";
  array.dtype = kDTypes[data[0] % kDTypes.size()];
  array.reversed = (data[1] & 1) != 0;
  for (unsigned i = 0; i < (data[1] >> 1) % 5u; ++i) {
    array.filters.push_back(static_cast<ChunkedArray::Filter>((data[2] >> 2 * i & 3) % 3));
  }
  const int64_t rows = data[4] % 16 + 1, columns = data[5] % 16 + 1;
  array.shape = {rows + 1, columns};
  array.chunk = {rows, columns};
  array.chunks.resize(2);
  MemoryFiles files;
  files["x.h5"] = std::string(reinterpret_cast<const char*>(data + kHead), size - kHead);
  const auto file = files.open("x.h5");
  array.chunks[0] = {0, size - kHead + data[6] / 64 * uint64_t{1000}, data[3]};
  array.check();
  ChunkDecoder decoder(array);
  const size_t bytes = array.chunk_bytes();
  const auto first = decoded(decoder, *file, 0, bytes);
  REQUIRE(decoded(decoder, *file, 1, bytes) == Values(bytes));  // never written: zeros
  REQUIRE(decoded(decoder, *file, 0, bytes) == first);
  ChunkDecoder fresh(array);
  REQUIRE(decoded(fresh, *file, 0, bytes) == first);
  if (!first) return 0;
  Values row(array.row_bytes());
  for (int64_t i = 0; i < rows; ++i) {
    copy_row_of_chunk(array, static_cast<uint64_t>(i), 0, *first, row);
    const auto begin = first->begin() + i * static_cast<int64_t>(row.size());
    REQUIRE(std::equal(row.begin(), row.end(), begin));
  }
  return 0;
}
