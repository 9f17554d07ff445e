#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/io/compression.h"
#include "penstock/io/file.h"

namespace penstock {

// Writes a TFRecord file. It appears under its name when close() was called, and never in part. One
// thread.
class TFRecordWriter {
 public:
  // Error as FileSystem::create's.
  TFRecordWriter(FileSystem& files, const std::string& path,
                 Compression compression = Compression::kNone);

  // Error kSystem, after which the writer is closed and nothing is left; kClosed when it is closed.
  void write(std::span<const std::byte> payload);

  // The file is there, on the disk. A second call does nothing. Without one, nothing is left. Error
  // kSystem.
  void close();

  uint64_t records() const { return records_; }
  // Of the file, so far; before they are compressed.
  uint64_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kBuffer = 256 << 10;

  void append(std::span<const std::byte> bytes);
  void put(std::span<const std::byte> bytes);

  std::unique_ptr<Sink> sink_;  // nullptr: closed
  std::vector<std::byte> buffer_;
  uint64_t records_ = 0, bytes_ = 0;
};

}  // namespace penstock
