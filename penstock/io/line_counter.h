#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/io/file_pool.h"
#include "penstock/io/sequential_file.h"

namespace penstock {

// Which line of a text file a byte is in, for messages: the file is read up to there, from where
// the last question's answer was, if that is in front of it. One thread.
class LineCounter {
 public:
  static constexpr uint64_t kMost = 256 << 20;  // bytes; beyond them it would take too long

  explicit LineCounter(std::shared_ptr<FilePool> pool) : pool_(std::move(pool)) {}

  // From 1. Nothing: it is too far, or the file cannot be read up to there.
  std::optional<uint64_t> line_at(const std::string& path, Compression compression,
                                  uint64_t offset);

 private:
  bool next_piece();

  const std::shared_ptr<FilePool> pool_;
  std::string path_;
  std::optional<SequentialFile> source_;
  std::vector<std::byte> piece_;
  uint64_t begin_ = 0, bytes_ = 0, lines_ = 0;  // of the piece; line ends in front of it
};

}  // namespace penstock
