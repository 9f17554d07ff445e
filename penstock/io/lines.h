#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "penstock/io/compression.h"
#include "penstock/io/framing.h"
#include "penstock/io/progress.h"
#include "penstock/io/record_reader.h"

namespace penstock {

// One pass over a text file: where each line lies, its end (LF, or CR LF) included. A last line may
// lack its end; behind the last end there is no further line. Takes no memory but the index and 256
// KiB. Error kDataLoss if the file becomes shorter meanwhile, kSystem, kClosed. Any thread.
RecordIndex index_lines(File& file, Progress* progress = nullptr);

// Reads lines by their numbers, a chunk at a time. A line that is no UTF-8 fails (kDataLoss), and
// so does one that is another than when the file was indexed, as far as its end shows it. One
// thread.
class LineReader {
 public:
  explicit LineReader(std::shared_ptr<const RecordFiles> files);

  // As RecordReader's.
  void read(std::span<const uint64_t> lines);
  std::shared_ptr<void> memory() const { return records_.memory(); }
  uint64_t memory_bytes() const { return records_.memory_bytes(); }
  std::span<const RecordReader::Failure> failures() const { return records_.failures(); }

  // Of the last read(): its row-th line, without its end. Empty for a row that failed.
  std::span<const std::byte> line(size_t row) const { return lines_[row]; }

 private:
  bool may_lack_end(uint64_t line) const;
  size_t check_text(size_t row, size_t rows);

  const std::shared_ptr<const RecordFiles> files_;
  RecordReader records_;
  std::array<std::span<const std::byte>, RecordReader::kChunk> lines_;
};

// Lines for whoever goes through a file from the front; one that is no UTF-8 is bad.
std::unique_ptr<Framing> line_framing();

// How a text file is compressed: gzip if it begins so or is named so. (What a zlib file begins with
// may be text.) Error kSystem. Any thread.
Compression compression_of_text(File& file);

}  // namespace penstock
