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
#include "penstock/io/sequential_file.h"

namespace penstock {

// Files that are gone through one after the other. Immutable: any thread.
struct StreamFiles {
  std::shared_ptr<FilePool> pool;
  std::vector<std::string> paths;
  std::vector<Compression> compressions;  // of each
  std::vector<uint64_t> fronts = {};      // bytes of each that come before its records; or none
  std::vector<uint64_t> counts = {};      // records of each, where its front says that; or none
};

// Reads the records of files from the front, a chunk at a time: compressed ones, and those that
// nobody wants to index. What is wrong with one record is that record's failure, and reading goes
// on behind it; damage of compressed bytes costs the rest of its file, one failure, as does a file
// that vanished. Takes memory for a chunk's records and some 350 KiB, whatever the files say. One
// thread.
//
// Of files whose records are counted each has just so many rows: one that vanished, ends before,
// goes on behind or cannot be inflated ends the reading with a failure that nothing follows.
class RecordStream {
 public:
  static constexpr size_t kChunk = 64;

  struct Place {
    uint64_t file = 0, offset = 0, record = 0;  // of what was inflated; in the file
  };
  struct Row {
    Place place;
    std::span<const std::byte> bytes;  // empty for a row that failed
  };
  struct Failure {
    size_t row;
    uint64_t bytes;  // that are lost: of what was inflated, or, with `rest`, of the file
    bool rest;       // all that the file still had is lost
    Code code;       // kDataLoss, kNotFound, kSystem
    std::string why;
    bool fatal = false;  // nothing follows: every further read() says the same
  };

  // `operation`: that of its errors. `alive`: called from time to time; may throw, which ends the
  // read().
  RecordStream(std::shared_ptr<const StreamFiles> files, const char* operation,
               std::unique_ptr<Framing> framing, std::function<void()> alive = {});

  // At the front of the first file.
  void begin() { seek({}); }
  // Goes to a place that was place(). What is compressed is inflated up to there. Error
  // kInvalidArgument if there is no such place; as FileSystem::open's.
  void seek(const Place& place);
  // Of the next record.
  const Place& place() const { return place_; }

  // The next records, at most `most`, and fewer where they are large; 0: it is over. Error
  // kOutOfMemory, and what `alive` throws. REQUIRED: 1 <= most <= kChunk.
  size_t read(size_t most);

  // Of the last read(), and as long.
  const Row& row(size_t row) const { return rows_[row]; }
  std::span<const Failure> failures() const { return failures_; }
  uint64_t memory_bytes() const { return size_; }  // of what rows lie in
  // Names file, record, byte and what is lost.
  Error error_of(const Failure& failure) const;

  const StreamFiles& files() const { return *files_; }
  // Bytes of the file in hand that were read. After read(), of the last record's.
  uint64_t used() const { return used_; }

 private:
  static constexpr size_t kPiece = 64 << 10;
  static constexpr uint64_t kMostBytes = 1 << 20;  // of a chunk, after which no record is added

  bool open();
  bool drop(uint64_t bytes);
  void close();
  void fill(uint64_t wanted);
  std::byte* room();
  Framing::Front front() const;
  void take(const Framing::Cut& cut);
  void lose_stretch();
  void lose_rest(const Place& from, const char* why = "");
  void end_counted();
  bool counted() const { return !files_->counts.empty(); }
  void fail(const Place& place, uint64_t bytes, bool rest, Code code, std::string why);

  const std::shared_ptr<const StreamFiles> files_;
  const FilePool::Use use_;
  const char* const operation_;
  const std::unique_ptr<Framing> framing_;
  const std::function<void()> alive_;

  Place place_;
  std::optional<SequentialFile> source_;  // nothing: the file is not open
  bool over_ = false;                     // all of the source that can be had is in the buffer
  std::optional<Error> error_;            // why that is not all
  uint64_t file_bytes_ = 0, used_ = 0;

  // What was read and is not used: [begin_, end_), of which the first taken_ bytes are rows'.
  std::unique_ptr<std::byte[]> buffer_;
  uint64_t size_ = 0, begin_ = 0, end_ = 0, taken_ = 0;

  size_t count_ = 0;
  std::array<Row, kChunk> rows_;
  std::array<uint64_t, kChunk> begins_;  // of the rows' bytes, from begin_ on
  std::vector<Failure> failures_;
};

}  // namespace penstock
