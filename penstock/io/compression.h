#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace penstock {

enum class Compression : uint8_t { kNone, kGzip, kZlib };

// Whether a file that begins so is a gzip file (RFC 1952); any number of bytes.
bool begins_as_gzip(std::span<const std::byte> bytes);
// ... a zlib stream (RFC 1950). Some text begins so, too: ask only of what cannot be text.
bool begins_as_zlib(std::span<const std::byte> bytes);
// Whether the name says that it is: "train.tfrecord.gz".
bool named_as_gzip(std::string_view path);

// "gzip", "zlib", "none". Error kInvalidArgument, of `operation`, for any other.
Compression compression_named(std::string_view name, const char* operation);

}  // namespace penstock
