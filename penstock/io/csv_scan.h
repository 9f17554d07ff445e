#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "penstock/io/file.h"
#include "penstock/io/framing.h"
#include "penstock/io/record_index.h"

namespace penstock {

// Finds the ends of records in a CSV file (RFC 4180): line ends (LF, or CR LF) outside quotes. A
// field is quoted if it begins with '"'; elsewhere a quote is an ordinary character. One thread.
class CsvScan {
 public:
  explicit CsvScan(char delimiter) : delimiter_(delimiter) {}

  // `bytes` follow those of the previous call. Returns how many of them belong to the current
  // record, its line end included; the next call is then about the next record. nullopt: the record
  // does not end in these bytes.
  std::optional<size_t> end_in(std::span<const std::byte> bytes);

 private:
  enum class At : uint8_t { kFieldStart, kField, kQuotes, kQuoteInQuotes };

  char delimiter_;
  At at_ = At::kFieldStart;
};

// The number of bytes at the front that are empty lines, which are not records.
size_t empty_lines(std::span<const std::byte> bytes);

// Indexes the records of a CSV file from byte `begin` on, in one pass. Empty lines belong to the
// record before them. Uses 256 KiB of memory besides the index. Error kDataLoss if the file becomes
// shorter meanwhile, kSystem, kClosed. Any thread.
RecordIndex index_csv(File& file, char delimiter, uint64_t begin, Progress* progress = nullptr);

// The same records for reading a file from the front.
std::unique_ptr<Framing> csv_framing(char delimiter);

}  // namespace penstock
