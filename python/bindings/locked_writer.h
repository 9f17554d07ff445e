#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "penstock/base/error.h"
#include "penstock/io/compression.h"
#include "penstock/io/file.h"
#include "penstock/io/tfrecord.h"

namespace penstock::python {

// A writer of the engine that any thread may use, one after the other. REQUIRED: called without the
// GIL.
template <class Writer>
class LockedWriter {
 public:
  // `compression`: a name of compression_from_name(). `operation`: the name in errors, a literal.
  LockedWriter(const std::filesystem::path& path, const std::string& compression,
               const char* operation)
      : operation_(operation),
        files_(posix_files()),
        writer_(std::in_place, *files_, path, compression_from_name(compression, operation)) {}

  // Calls `write` with the writer. Error kClosed: after close() or discard(); errors of `write`.
  template <class Write>
  void write(Write write) {
    std::lock_guard lock(mutex_);
    if (!writer_) throw Error(Code::kClosed, operation_, "the file was closed");
    write(*writer_);
    note();
  }
  void close() {
    std::lock_guard lock(mutex_);
    if (writer_) {
      writer_->close();
      note();
    }
    writer_.reset();
  }
  // Deletes the unfinished file; a second call does nothing.
  void discard() {
    std::lock_guard lock(mutex_);
    writer_.reset();
  }
  // As far as the engine's writer counts them; of a tar archive `records` are samples.
  uint64_t records() const { return records_; }
  uint64_t bytes() const { return bytes_; }

 private:
  void note() {
    if constexpr (requires(Writer & writer) { writer.bytes(); }) bytes_ = writer_->bytes();
    if constexpr (requires(Writer & writer) { writer.records(); }) records_ = writer_->records();
    if constexpr (requires(Writer & writer) { writer.samples(); }) records_ = writer_->samples();
  }

  const char* const operation_;
  std::mutex mutex_;
  const std::shared_ptr<FileSystem> files_;
  std::optional<Writer> writer_;  // nullopt: closed
  std::atomic<uint64_t> records_{0}, bytes_{0};
};

using RecordWriter = LockedWriter<TFRecordWriter>;

}  // namespace penstock::python
