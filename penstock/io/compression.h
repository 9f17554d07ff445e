#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/io/file.h"

namespace penstock {

enum class Compression : uint8_t { kNone, kGzip, kZlib };

// True if a file with this beginning, of any length, is a gzip file (RFC 1952).
bool has_gzip_magic(std::span<const std::byte> bytes);
// True if it is a zlib stream (RFC 1950). Some text looks like one: call only for binary formats.
bool has_zlib_magic(std::span<const std::byte> bytes);
// True if the name has the extension of a gzip file: "train.tfrecord.gz".
bool has_gzip_extension(std::string_view path);

// The Compression of the name "gzip", "zlib" or "none". Error kInvalidArgument, of `operation`, for
// any other name.
Compression compression_from_name(std::string_view name, const char* operation);

// Decompresses a file in order, and verifies its checksums. gzip: all members, and zero padding at
// the end. Uses about 150 KiB of memory, whatever the file contains. One thread.
class Inflate {
 public:
  // REQUIRED: `compression` is not kNone.
  Inflate(std::shared_ptr<File> file, Compression compression);
  ~Inflate();

  // Fills `to`; fewer bytes only at the end or before damage, 0 at the end. Error kDataLoss if the
  // compressed bytes are corrupt or truncated, or kSystem; also from every later call.
  size_t read(std::span<std::byte> to);

  // Bytes of the file consumed so far. After damage: its approximate position. Smaller reads make
  // the position more precise.
  uint64_t used() const;

 private:
  struct State;

  size_t step(std::span<std::byte> to);
  bool refill();
  bool begin_member();
  void damaged(const char* why);

  const std::unique_ptr<State> state_;
};

// A sink that compresses to `sink`, as one gzip member or zlib stream, with ISA-L's fast level.
// Uses about 600 KiB of memory. REQUIRED: `compression` is not kNone.
std::unique_ptr<Sink> compress_to(std::unique_ptr<Sink> sink, Compression compression);

// Reads a file in order, decompressed if it is compressed. One thread.
class SequentialFile {
 public:
  SequentialFile(std::shared_ptr<File> file, Compression compression);

  // Like Inflate::read(): fills `to`; fewer bytes only at the end or before damage, 0 at the end.
  // Error kDataLoss, kSystem; also from every later call.
  size_t read(std::span<std::byte> to);

  // Skips this many bytes, at most up to the end. REQUIRED: the file is not compressed.
  void skip(uint64_t bytes);

  bool compressed() const { return inflate_.has_value(); }
  // Bytes of the file not consumed yet; approximate if it is compressed.
  uint64_t left() const { return size_ - (inflate_ ? inflate_->used() : offset_); }
  // An upper bound of the bytes that read() returns in total; exact if the file is not compressed.
  uint64_t max_bytes() const;

 private:
  std::shared_ptr<File> file_;
  uint64_t size_, offset_ = 0;
  std::optional<Inflate> inflate_;
};

// A new file that is written through a buffer and appears under its name when close() is called.
// Without close(), or after an error, the file is discarded. One thread.
class BufferedSink {
 public:
  // Error as FileSystem::create().
  BufferedSink(FileSystem& files, const std::string& path, Compression compression)
      : sink_(files.create(path)) {
    if (compression != Compression::kNone) sink_ = compress_to(std::move(sink_), compression);
    buffer_.reserve(kBuffer);
  }

  bool closed() const { return sink_ == nullptr; }

  // Error kSystem: the sink is then closed. REQUIRED: !closed().
  void append(std::span<const std::byte> bytes) {
    if (buffer_.size() + bytes.size() > kBuffer) flush();
    if (bytes.size() > kBuffer) {
      put(bytes);
    } else {
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    }
  }

  // Flushes the file to disk and publishes it. A second call does nothing. Error kSystem.
  void close() {
    if (closed()) return;
    flush();
    std::exchange(sink_, nullptr)->commit();
  }

 private:
  static constexpr size_t kBuffer = 256 << 10;

  void flush() {
    put(buffer_);
    buffer_.clear();
  }
  void put(std::span<const std::byte> bytes) {
    try {
      sink_->write(bytes);
    } catch (...) {
      sink_.reset();  // an unknown part was written
      throw;
    }
  }

  std::unique_ptr<Sink> sink_;  // nullptr: closed
  std::vector<std::byte> buffer_;
};

}  // namespace penstock
