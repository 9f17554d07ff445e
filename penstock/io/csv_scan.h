#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "penstock/io/file.h"
#include "penstock/io/framing.h"
#include "penstock/io/progress.h"
#include "penstock/io/record_index.h"

namespace penstock {

// Where the records of a CSV file (RFC 4180) end: at a line's end (LF, or CR LF) that is not
// between quotes. A field is quoted if it begins with '"'; elsewhere a quote is a character like
// any. One thread.
class CsvScan {
 public:
  explicit CsvScan(char delimiter) : delimiter_(delimiter) {}

  // `bytes` are those that follow what it was given before. How many of them the record in hand
  // has, its end included, and then the next one is in hand; nothing: all of them, and its end is
  // not among them.
  std::optional<size_t> end_in(std::span<const std::byte> bytes);

 private:
  enum class At : uint8_t { kFieldStart, kField, kQuotes, kQuoteInQuotes };

  char delimiter_;
  At at_ = At::kFieldStart;
};

// Bytes at the front that are lines without anything in them, which are no records.
size_t empty_lines(std::span<const std::byte> bytes);

// One pass over a CSV file from byte `begin` on: where each record lies. Empty lines are part of
// what is in front of them. Takes no memory but the index and 256 KiB. Error kDataLoss if the file
// becomes shorter meanwhile, kSystem, kClosed. Any thread.
RecordIndex index_csv(File& file, char delimiter, uint64_t begin, Progress* progress = nullptr);

// The same records for whoever goes through a file from the front.
std::unique_ptr<Framing> csv_framing(char delimiter);

}  // namespace penstock
