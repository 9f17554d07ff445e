#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/io/scattered_read.h"
#include "penstock/io/tfrecord_files.h"

namespace penstock {

// Reads records of TFRecord files by their numbers, a chunk at a time. Both checksums of each are
// verified, always. What is wrong with one record is that record's failure and touches no other:
// damage, a file that vanished or became shorter, an error of the disk. One thread.
class TFRecordReader {
 public:
  static constexpr size_t kChunk = 64;

  struct Failure {
    size_t row;
    uint64_t bytes;  // of the file that are lost with it
    Error error;     // kDataLoss, kNotFound, kSystem; names file, record in the file, and byte
  };

  explicit TFRecordReader(std::shared_ptr<const TFRecordFiles> files);

  // Reads these records, in any order, together where they are neighbours. Error kOutOfMemory.
  // REQUIRED: at most kChunk of them, each < files->size().
  void read(std::span<const uint64_t> records);

  // Of the last read(): the payload of its row-th record, a view until the next read(), or for as
  // long as memory() is held. Empty for a row that failed.
  std::span<const std::byte> payload(size_t row) const { return payloads_[row]; }
  // What the payloads of the last read() point into. While somebody else holds it, the reader
  // leaves it alone and reads to other memory.
  std::shared_ptr<void> memory() const { return buffers_[buffer_].bytes; }
  // None in nearly all chunks; in no order.
  std::span<const Failure> failures() const { return failures_; }

 private:
  struct Frame {
    size_t row, file;
    uint64_t record;  // in the file
    RecordIndex::Place place;
    std::byte* bytes;
    bool failed;
  };

  struct Buffer {
    std::shared_ptr<std::byte[]> bytes;
    uint64_t size = 0;
  };

  size_t locate(std::span<const uint64_t> records);
  std::byte* make_room(uint64_t bytes);
  bool fetch_scattered(std::span<Frame> frames);
  void fetch(std::span<Frame> frames);
  void fetch_from(File& file, std::span<Frame> frames);
  static const char* wrong_with(const Frame& frame);
  void fail(Frame& frame, Code code, const std::string& why);

  const std::shared_ptr<const TFRecordFiles> files_;
  std::array<uint64_t, kChunk> order_;
  std::array<Frame, kChunk> frames_;
  std::array<File::Segment, kChunk> segments_;
  std::array<ScatteredRead::Piece, kChunk> pieces_;
  std::vector<std::shared_ptr<File>> scattered_over_;
  ScatteredRead scattered_;
  std::array<std::span<const std::byte>, kChunk> payloads_;
  std::vector<Failure> failures_;
  std::vector<Buffer> buffers_;  // as many as were ever held at the same time
  size_t buffer_ = 0;            // that of the last read()
};

}  // namespace penstock
