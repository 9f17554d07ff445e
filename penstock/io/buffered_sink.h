#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/io/compression.h"
#include "penstock/io/file.h"

namespace penstock {

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
