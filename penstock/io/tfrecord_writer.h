#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "penstock/io/buffered_sink.h"
#include "penstock/io/compression.h"
#include "penstock/io/file.h"

namespace penstock {

// Writes a TFRecord file, which appears under its name when close() is called. One thread.
class TFRecordWriter {
 public:
  // Error as FileSystem::create().
  TFRecordWriter(FileSystem& files, const std::string& path,
                 Compression compression = Compression::kNone);

  // Error kSystem: the writer is then closed and the file discarded; kClosed: close() was called.
  void write(std::span<const std::byte> payload);

  // Flushes the file to disk and publishes it. A second call does nothing. Without close(), the
  // destructor discards the file. Error kSystem.
  void close();

  uint64_t records() const { return records_; }
  // Bytes written so far, before compression.
  uint64_t bytes() const { return bytes_; }

 private:
  BufferedSink sink_;
  uint64_t records_ = 0, bytes_ = 0;
};

}  // namespace penstock
