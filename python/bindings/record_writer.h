#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "penstock/io/tfrecord.h"

namespace penstock::python {

// A TFRecordWriter with a lock, for any thread. REQUIRED: called without the GIL.
class RecordWriter {
 public:
  // `compression`: a name of compression_from_name().
  RecordWriter(const std::filesystem::path& path, const std::string& compression)
      : files_(posix_files()),
        writer_(std::in_place, *files_, path, compression_from_name(compression, "tfrecord")) {}

  void write(std::span<const std::byte> record);
  void close();
  void discard();  // deletes the unfinished file; a second call does nothing

  uint64_t records() const { return records_; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::mutex mutex_;
  const std::shared_ptr<FileSystem> files_;
  std::optional<TFRecordWriter> writer_;  // nullopt: closed
  std::atomic<uint64_t> records_{0}, bytes_{0};
};

}  // namespace penstock::python
