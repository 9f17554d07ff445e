#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/io/compression.h"
#include "penstock/io/file_pool.h"
#include "penstock/io/framing.h"
#include "penstock/io/record_index.h"
#include "penstock/io/record_reader.h"

namespace penstock {

// Indexes the lines of a text file in one pass, each with its line end (LF, or CR LF). The last
// line may lack its end. Uses 256 KiB of memory besides the index. Error kDataLoss if the file
// becomes shorter meanwhile, kSystem, kClosed. Any thread.
RecordIndex index_lines(File& file, Progress* progress = nullptr);

// Reads lines by their numbers, a chunk at a time. A line that is not UTF-8 fails (kDataLoss), and
// so does a line whose end shows that the file changed after it was indexed. One thread.
class LineReader {
 public:
  explicit LineReader(std::shared_ptr<const RecordFiles> files);

  // Like RecordReader's.
  void read(std::span<const uint64_t> lines);
  std::shared_ptr<void> memory() const { return records_.memory(); }
  uint64_t memory_bytes() const { return records_.memory_bytes(); }
  std::span<const RecordReader::Failure> failures() const { return records_.failures(); }

  // The row-th line of the last read(), without its end. Empty for a row that failed.
  std::span<const std::byte> payload(size_t row) const { return lines_[row]; }

 private:
  bool may_lack_end(uint64_t line) const;
  size_t check_text(size_t row, size_t rows);

  const std::shared_ptr<const RecordFiles> files_;
  RecordReader records_;
  std::array<std::span<const std::byte>, RecordReader::kChunk> lines_;
};

// Lines for reading a file from the front; a line that is not UTF-8 is corrupt.
std::unique_ptr<Framing> line_framing();

// How a text file is compressed: gzip by its first bytes or its name. (zlib is not detected: text
// may look like it.) Error kSystem. Any thread.
Compression compression_of_text(File& file);

// Finds the line number of a byte in a text file, for messages. Reads the file up to that byte,
// starting from the previous call's position if possible. One thread.
class LineCounter {
 public:
  static constexpr uint64_t kMaxScannedBytes = 256 << 20;  // beyond, the search would take too long

  explicit LineCounter(std::shared_ptr<FilePool> pool) : pool_(std::move(pool)) {}

  // The line number, from 1. nullopt: the byte is too far, or the file cannot be read up to there.
  std::optional<uint64_t> line_at(const std::string& path, Compression compression,
                                  uint64_t offset);

 private:
  bool next_piece();

  const std::shared_ptr<FilePool> pool_;
  std::string path_;
  std::optional<SequentialFile> source_;
  std::vector<std::byte> piece_;
  uint64_t begin_ = 0, bytes_ = 0, lines_ = 0;  // of the piece; line ends before it
};

}  // namespace penstock
