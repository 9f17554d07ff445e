#include "penstock/io/compression.h"

#include <string>

#include "penstock/base/error.h"

namespace penstock {
namespace {

unsigned at(std::span<const std::byte> bytes, size_t i) {
  return std::to_integer<unsigned>(bytes[i]);
}

}  // namespace

bool begins_as_gzip(std::span<const std::byte> bytes) {
  // Magic, deflate, and flags of which three are for later.
  return bytes.size() >= 4 && at(bytes, 0) == 0x1F && at(bytes, 1) == 0x8B && at(bytes, 2) == 8 &&
         (at(bytes, 3) & 0xE0) == 0;
}

bool begins_as_zlib(std::span<const std::byte> bytes) {
  // Deflate with a window of at most 32 KiB, no dictionary, and the header's own check.
  return bytes.size() >= 2 && (at(bytes, 0) & 15) == 8 && at(bytes, 0) >> 4 <= 7 &&
         (at(bytes, 1) & 0x20) == 0 && (at(bytes, 0) << 8 | at(bytes, 1)) % 31 == 0;
}

bool named_as_gzip(std::string_view path) { return path.ends_with(".gz"); }

Compression compression_named(std::string_view name, const char* operation) {
  if (name == "gzip") return Compression::kGzip;
  if (name == "zlib") return Compression::kZlib;
  if (name == "none") return Compression::kNone;
  throw Error(Code::kInvalidArgument, operation,
              "compression is '" + std::string(name) +
                  "'; give 'gzip', 'zlib' or 'none', or nothing: then the files tell");
}

}  // namespace penstock
