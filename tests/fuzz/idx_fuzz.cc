// Any bytes as an IDX file, plain, compressed, and as if they were compressed data: a header that
// agrees with the file's length, or DataLoss.
#include <cstdint>
#include <optional>
#include <string>

#include "cpp/io/tfrecords.h"
#include "fuzz/require.h"
#include "penstock/io/idx.h"

using namespace penstock;

namespace {

std::optional<IdxHeader> header_of(const std::string& bytes, Compression compression) {
  MemoryFiles files;
  files["file"] = bytes;
  const auto file = files.open("file");
  (void)compression_of_idx(*file);
  try {
    return read_idx_header(file, compression);
  } catch (const Error& error) {
    REQUIRE(error.code() == Code::kDataLoss);
    REQUIRE(std::string(error.what()).find("file") != std::string::npos);
    return std::nullopt;
  }
}

void check(const IdxHeader& header, uint64_t bytes) {
  uint64_t row = size_of(header.dtype);
  for (const int64_t n : header.shape) row *= static_cast<uint64_t>(n);
  REQUIRE(header.row_bytes == row && row > 0);
  REQUIRE(header.bytes == 4 + 4 * (header.shape.size() + 1));
  REQUIRE(header.rows <= bytes / row && header.bytes + header.rows * row == bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  if (const auto header = header_of(bytes, Compression::kNone)) {
    check(*header, size);
    for (const Compression how : {Compression::kGzip, Compression::kZlib}) {
      const auto again = header_of(compressed(bytes, how), how);
      REQUIRE(again && again->shape == header->shape && again->rows == header->rows);
    }
  }
  (void)header_of(bytes, Compression::kGzip);
  (void)header_of(bytes, Compression::kZlib);
  return 0;
}
