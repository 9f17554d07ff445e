#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/io/record_files.h"
#include "penstock/io/scattered_read.h"

namespace penstock {

// Reads records by their numbers, a chunk at a time: the bytes of their places, whatever these
// mean. What is wrong with one record is that record's failure and touches no other: a damaged
// place, a file that vanished or became shorter, an error of the disk. One thread.
//
// Where a chunk took so long that the disk must have been waited for, the files are told beforehand
// what the next one needs (File::expect), so that a disk that can do several things at a time does,
// until a chunk is there at once again: what lies in memory is not asked for twice.
class RecordReader {
 public:
  static constexpr size_t kChunk = 64;

  struct Failure {
    size_t row;
    uint64_t bytes;  // of the file that are lost with it
    Error error;     // kDataLoss, kNotFound, kSystem; names file, record in the file, and byte
  };

  // `operation`: that of its errors, as "tfrecord"; a literal. `checked`: whoever reads verifies
  // every row and asks read_again() where it is not what it should be; else each file's length is
  // looked at.
  RecordReader(std::shared_ptr<const RecordFiles> files, const char* operation, bool checked);

  // Reads these records, in any order, together where they are neighbours. Error kOutOfMemory;
  // kInternal: there is no such record. REQUIRED: at most kChunk of them.
  void read(std::span<const uint64_t> records);

  // Of the last read(): its row-th record, a view until the next read(), or for as long as memory()
  // is held. Empty for a row that failed.
  std::span<const std::byte> bytes(size_t row) const { return bytes_[row]; }
  // What the rows of the last read() point into. While somebody else holds it, the reader leaves it
  // alone and reads to other memory.
  std::shared_ptr<void> memory() const { return buffers_[buffer_].bytes; }
  uint64_t memory_bytes() const;  // of all that it reads to
  // None in nearly all chunks; in no order.
  std::span<const Failure> failures() const { return failures_; }

  // For whoever finds something wrong with a row: it is read again by itself, if it came in a way
  // that takes zeroes for what a file lacks. True: look at it again. False: it stays as it is, or
  // has failed now.
  bool read_again(size_t row);
  // The row is lost. One that was lost already stays as it was.
  void fail(size_t row, Code code, const std::string& why);

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

  // What the records of a chunk have in common.
  struct Extent {
    size_t count = 0, stretches = 0;  // that are read; of neighbours among them
    uint64_t bytes = 0;
  };

  void locate(std::span<const uint64_t> records);
  static bool near(const Frame& before, const Frame& frame);
  static Extent extent_of(std::span<const Frame> frames);
  void expect(std::span<const Frame> frames);
  std::byte* make_room(uint64_t bytes);
  bool fetch_scattered(std::span<Frame> frames, const Extent& extent);
  bool copy_scattered(std::span<const Frame> frames);
  void fetch(std::span<Frame> frames);
  void fetch_from(File& file, std::span<Frame> frames);
  void fail(Frame& frame, Code code, const std::string& why);

  const std::shared_ptr<const RecordFiles> files_;
  const FilePool::Use use_;
  const char* const operation_;
  const bool checked_;
  std::array<uint64_t, kChunk> order_;
  std::array<Frame, kChunk> frames_;      // in the order in which they lie in the files
  std::array<uint8_t, kChunk> frame_of_;  // by row
  std::array<File::Segment, kChunk> segments_;
  std::array<ScatteredRead::Piece, kChunk> pieces_;
  struct Reach {
    std::shared_ptr<File> file;
    uint64_t end;  // of what is wanted of it
  };
  std::vector<Reach> scattered_over_;
  ScatteredRead scattered_read_;
  bool scattered_ = false;  // the last read() was
  bool waited_ = false;     // in the last read(), for the disk
  std::array<std::span<const std::byte>, kChunk> bytes_;
  std::vector<Failure> failures_;
  std::vector<Buffer> buffers_;  // as many as were ever held at the same time
  size_t buffer_ = 0;            // that of the last read()
};

}  // namespace penstock
