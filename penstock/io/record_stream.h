#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/io/compression.h"
#include "penstock/io/file_pool.h"
#include "penstock/io/framing.h"

namespace penstock {

// Files to read one after the other. Immutable: any thread.
struct StreamFiles {
  std::shared_ptr<FilePool> pool;
  std::vector<std::string> paths;
  std::vector<Compression> compressions;    // one per file
  std::vector<uint64_t> header_bytes = {};  // one per file: bytes before its records; or empty
  std::vector<uint64_t> counts = {};  // one per file, if the headers have a record count; or empty
};

// Reads the records of files from the front, a chunk at a time: for compressed files, and for files
// without an index. A fault in one record fails that record, and reading continues after it.
// Damaged compressed bytes, or a file that vanished, cost the rest of the file as one failure. Uses
// memory for a chunk's records and about 350 KiB, whatever the files contain. One thread.
//
// If the files have counts, each file yields exactly its count of rows. A file that vanished, is
// too short or too long, or cannot be decompressed ends the stream with a fatal failure.
class RecordStream {
 public:
  static constexpr size_t kChunk = 64;

  struct Place {
    uint64_t file = 0, offset = 0, record = 0;  // offset: after decompression; record: in the file
  };
  struct Row {
    Place place;
    std::span<const std::byte> bytes;  // empty for a row that failed
  };
  struct Failure {
    size_t row;
    uint64_t bytes;  // lost: after decompression, or with `rest` of the file
    bool rest;       // the rest of the file is lost
    Code code;       // kDataLoss, kNotFound, kSystem
    std::string why;
    bool fatal = false;  // the end: every further read() reports the same failure
  };

  // `operation`: of its errors. `check_cancelled`: called from time to time; may throw, which ends
  // the read().
  RecordStream(std::shared_ptr<const StreamFiles> files, const char* operation,
               std::unique_ptr<Framing> framing, std::function<void()> check_cancelled = {});

  // Goes to the beginning of the first file.
  void begin() { seek({}); }
  // Goes to an earlier result of place(). A compressed file is decompressed up to there. Error
  // kInvalidArgument if there is no such place; as FileSystem::open().
  void seek(const Place& place);
  // The place of the next record.
  const Place& place() const { return place_; }

  // Reads the next records, at most `max_rows`, fewer if they are large; 0: the end. Error
  // kOutOfMemory, and what `check_cancelled` throws. REQUIRED: 1 <= max_rows <= kChunk.
  size_t read(size_t max_rows);

  // The rows of the last read(), and those that failed; valid until the next read().
  const Row& row(size_t row) const { return rows_[row]; }
  std::span<const Failure> failures() const { return failures_; }
  uint64_t memory_bytes() const { return size_; }  // of the rows' buffer
  // The text names file, record, byte and the extent of the loss.
  Error error_of(const Failure& failure) const;

  const StreamFiles& files() const { return *files_; }
  // Bytes read of the current file; after read(), of the last record's file.
  uint64_t used() const { return used_; }

 private:
  static constexpr ptrdiff_t kAhead = 2;  // files that are announced
  static constexpr size_t kPiece = 64 << 10;
  static constexpr uint64_t kMaxBytes = 1 << 20;  // a chunk of this size takes no further record

  bool open();
  bool drop(uint64_t bytes);
  void close();
  void fill(uint64_t wanted);
  std::byte* free_space();
  Framing::Window window() const;
  void take(const Framing::Next& next);
  void skip_damaged(const char* why);
  void drop_rest_of_file(const Place& from, const char* why = "");
  void end_counted();
  bool counted() const { return !files_->counts.empty(); }
  void fail(const Place& place, uint64_t bytes, bool rest, Code code, std::string why);

  const std::shared_ptr<const StreamFiles> files_;
  const FilePool::Use use_;
  const char* const operation_;
  const std::unique_ptr<Framing> framing_;
  const std::function<void()> check_cancelled_;

  Place place_;
  std::optional<SequentialFile> source_;  // nullopt: no file is open
  bool over_ = false;                     // the rest of the source is in the buffer
  std::optional<Error> error_;            // the error that ended the source early
  uint64_t file_bytes_ = 0, used_ = 0;

  // Unused bytes are [begin_, end_); the first taken_ of them belong to rows.
  std::unique_ptr<std::byte[]> buffer_;
  uint64_t size_ = 0, begin_ = 0, end_ = 0, taken_ = 0;

  size_t count_ = 0;
  std::array<Row, kChunk> rows_;
  std::array<uint64_t, kChunk> begins_;  // of the rows' bytes, from begin_ on
  std::vector<Failure> failures_;
};

}  // namespace penstock
