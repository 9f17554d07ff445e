#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "penstock/io/record_reader.h"

namespace penstock {

using TFRecordFiles = RecordFiles;  // indexed by index_tfrecord

// Reads records of TFRecord files by their numbers, a chunk at a time. Both checksums of each are
// verified, always. What is wrong with one record is that record's failure and touches no other:
// damage, a file that vanished or became shorter, an error of the disk. One thread.
class TFRecordReader {
 public:
  static constexpr size_t kChunk = RecordReader::kChunk;
  using Failure = RecordReader::Failure;

  explicit TFRecordReader(std::shared_ptr<const TFRecordFiles> files);

  // As RecordReader's, whose views end as payloads do.
  void read(std::span<const uint64_t> records);
  std::shared_ptr<void> memory() const { return records_.memory(); }
  uint64_t memory_bytes() const { return records_.memory_bytes(); }
  std::span<const Failure> failures() const { return records_.failures(); }

  // Of the last read(): the payload of its row-th record. Empty for a row that failed.
  std::span<const std::byte> payload(size_t row) const { return payloads_[row]; }

 private:
  RecordReader records_;
  std::array<std::span<const std::byte>, kChunk> payloads_;
};

}  // namespace penstock
