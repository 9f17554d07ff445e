#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "penstock/io/tfrecord_writer.h"

namespace penstock::python {

// A TFRecordWriter that any thread may use, one after the other. Never called with the GIL held.
class RecordWriter {
 public:
  // `compression`: as compression_from_name() has it.
  RecordWriter(const std::filesystem::path& path, const std::string& compression)
      : files_(posix_files()),
        writer_(std::in_place, *files_, path, compression_from_name(compression, "tfrecord")) {}

  void write(std::span<const std::byte> record);
  void close();
  void discard();  // nothing is left; a second call does nothing

  uint64_t records() const { return records_; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::mutex mutex_;
  const std::shared_ptr<FileSystem> files_;
  std::optional<TFRecordWriter> writer_;  // nullopt: closed
  std::atomic<uint64_t> records_{0}, bytes_{0};
};

}  // namespace penstock::python
