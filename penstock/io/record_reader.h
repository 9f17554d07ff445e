#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/io/record_files.h"

namespace penstock {

// Copies many small pieces of files from their mappings (File::mapping) with one system call,
// instead of one call and one memory latency for each. The kernel copies, into a memory file: if a
// file is too short, the result is an errno, while a load of ours would be SIGBUS. One thread.
class ScatteredRead {
 public:
  static constexpr size_t kMaxPieces = 64;
  static constexpr uint64_t kMaxBytes = 256 << 10;

  struct Piece {
    const std::byte* from;  // in a mapping
    std::byte* to;
    uint64_t bytes;
  };

  ScatteredRead() = default;
  ScatteredRead(const ScatteredRead&) = delete;
  ScatteredRead& operator=(const ScatteredRead&) = delete;
  ~ScatteredRead() { close(); }

  // Copies all pieces. False: a file has become shorter or cannot be read, or there is no memory.
  // Then the bytes at `to` are undefined; reading the pieces one by one gives the error.
  // REQUIRED: at most kMaxPieces, of kMaxBytes together.
  bool copy(std::span<const Piece> pieces) noexcept;

 private:
  bool open() noexcept;
  void close() noexcept;

  os::Fd file_;  // in memory, kMaxBytes long
  std::byte* memory_ = nullptr;
  pid_t owner_ = 0;  // a forked child opens its own file
};

// Reads records by their numbers, a chunk at a time: the bytes of their places, without
// interpreting them. A fault (a damaged place, a file that vanished or became shorter, a disk
// error) fails only the record concerned. One thread.
//
// If a chunk took so long that it must have waited for the disk, the reader announces the next
// chunk's bytes beforehand (File::will_need), so that the disk can serve several requests in
// parallel. The reader stops once a chunk comes from memory again.
class RecordReader {
 public:
  static constexpr size_t kChunk = 64;

  struct Failure {
    size_t row;
    uint64_t bytes;  // of the file that are lost with the record
    Error error;     // kDataLoss, kNotFound, kSystem; names file, record in the file, and byte
  };

  // `operation`: of its errors, such as "tfrecord"; a literal. `checked`: the caller verifies every
  // row and calls read_again() if a row is wrong. Otherwise the reader checks each file's length.
  RecordReader(std::shared_ptr<const RecordFiles> files, const char* operation, bool checked);

  // Reads these records, in any order; neighbours are read together. Error kOutOfMemory; kInternal:
  // a number out of range. REQUIRED: at most kChunk records.
  void read(std::span<const uint64_t> records);

  // The row-th record of the last read(), valid until the next read(), or as long as memory() is
  // held. Empty for a row that failed.
  std::span<const std::byte> bytes(size_t row) const { return bytes_[row]; }
  // The memory of the rows of the last read(). While a caller holds it, the reader uses other
  // memory.
  std::shared_ptr<void> memory() const { return buffers_[buffer_].bytes; }
  uint64_t memory_bytes() const;  // of all buffers
  // Of the last read(), in no particular order.
  std::span<const Failure> failures() const { return failures_; }

  // Call if a row's contents are wrong. Reads the row again by itself if it was read in a way that
  // yields zeroes beyond the end of a file. True: check the row again. False: its bytes are
  // unchanged, or the row has failed now.
  bool read_again(size_t row);
  // Marks the row as lost. No effect if it is lost already.
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

  // The extent of a chunk's records.
  struct Extent {
    size_t count = 0, stretches = 0;  // records to read; runs of adjacent ones
    uint64_t bytes = 0;
  };

  void locate(std::span<const uint64_t> records);
  static bool near(const Frame& before, const Frame& frame);
  static Extent extent_of(std::span<const Frame> frames);
  void will_need(std::span<const Frame> frames);
  std::byte* reserve_buffer(uint64_t bytes);
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
    uint64_t end;  // of the wanted bytes
  };
  std::vector<Reach> scattered_over_;
  ScatteredRead scattered_read_;
  bool scattered_ = false;  // the last read() used scattered_read_
  bool waited_ = false;     // the last read() waited for the disk
  std::array<std::span<const std::byte>, kChunk> bytes_;
  std::vector<Failure> failures_;
  std::vector<Buffer> buffers_;  // one more than callers ever held at the same time
  size_t buffer_ = 0;            // of the last read()
};

}  // namespace penstock
