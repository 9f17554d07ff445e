#include <algorithm>
#include <cstring>

#include "penstock/io/csv_parser.h"

namespace penstock {
namespace {

constexpr char kQuoteChar = '"', kLineFeedChar = '\n', kReturnChar = '\r';

// The position of the first `wanted`, or `end`.
const char* find(const char* at, const char* end, char wanted) {
  const void* found = at == end ? nullptr : std::memchr(at, wanted, static_cast<size_t>(end - at));
  return found == nullptr ? end : static_cast<const char*>(found);
}

}  // namespace

std::optional<size_t> CsvScan::end_in(std::span<const std::byte> bytes) {
  const auto* const begin = reinterpret_cast<const char*>(bytes.data());
  const char* const end = begin + bytes.size();
  const char* at = begin;
  const char* feed = nullptr;   // the next one from `at` on; nullptr: not searched yet
  const char* quote = nullptr;  // likewise
  while (at != end) {
    if (at_ == At::kQuotes) {
      at = find(at, end, kQuoteChar);
      if (at == end) break;
      at_ = At::kQuoteInQuotes;
      ++at;
      continue;
    }
    if (at_ == At::kQuoteInQuotes) {
      at_ = *at == kQuoteChar ? At::kQuotes : At::kField;
      at += *at == kQuoteChar;
      continue;
    }
    if (feed == nullptr || feed < at) feed = find(at, end, kLineFeedChar);
    if (quote == nullptr || quote < at) quote = find(at, feed, kQuoteChar);
    if (quote < feed) {
      // True if the field begins with the quote.
      const bool first = quote == at ? at_ == At::kFieldStart : quote[-1] == delimiter_;
      at = quote + 1;
      at_ = first ? At::kQuotes : At::kField;
      if (!first) quote = nullptr;
      continue;
    }
    if (feed != end) {
      at_ = At::kFieldStart;
      return static_cast<size_t>(feed + 1 - begin);
    }
    at_ = end[-1] == delimiter_ ? At::kFieldStart : At::kField;
    break;
  }
  return std::nullopt;
}

size_t empty_lines(std::span<const std::byte> bytes) {
  const auto* at = reinterpret_cast<const char*>(bytes.data());
  size_t empty = 0;
  while (empty < bytes.size()) {
    if (at[empty] == kLineFeedChar) {
      ++empty;
    } else if (at[empty] == kReturnChar && empty + 1 < bytes.size() &&
               at[empty + 1] == kLineFeedChar) {
      empty += 2;
    } else {
      break;
    }
  }
  return empty;
}

RecordIndex index_csv(File& file, char delimiter, uint64_t begin, Progress* progress) {
  constexpr uint64_t kPiece = 256 << 10;
  const uint64_t size = file.size();
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(std::min(kPiece, size));
  RecordIndex::Builder index;
  CsvScan scan(delimiter);
  bool between = true;  // between two records
  uint64_t offset = begin;
  while (offset < size) {
    if (progress != nullptr) progress->reached(offset, file.path());
    const uint64_t bytes = std::min(kPiece, size - offset);
    const File::Segment segment{offset, buffer.get(), bytes};
    file.read({&segment, 1});
    std::span left(buffer.get(), bytes);
    while (!left.empty()) {
      if (between) {
        left = left.subspan(empty_lines(left));
        // The line feed of an empty line may be in the next piece.
        if (left.size() == 1 && left[0] == std::byte{kReturnChar} && offset + bytes < size) break;
        if (left.empty()) break;
        index.add(offset + bytes - left.size());
      }
      const std::optional<size_t> end = scan.end_in(left);
      between = end.has_value();
      left = left.subspan(end.value_or(left.size()));
    }
    offset += bytes - left.size();
  }
  return index.finish(size);
}

namespace {

class CsvFraming : public Framing {
 public:
  explicit CsvFraming(char delimiter) : delimiter_(delimiter), scan_(delimiter) {}

  void begin() override {
    scan_ = CsvScan(delimiter_);
    searched_ = 0;
  }

  Next next(const Window& window) override {
    if (searched_ == 0) {
      const size_t empty = empty_lines(window.bytes);
      if (empty > 0) return {Next::Kind::kSkip, empty};
      if (window.bytes.size() == 1 && window.bytes[0] == std::byte{kReturnChar} &&
          !window.complete()) {
        return {Next::Kind::kNeedMore, 2};
      }
    }
    const std::optional<size_t> end = scan_.end_in(window.bytes.subspan(searched_));
    if (!end && !window.complete()) {
      searched_ = window.bytes.size();
      return {Next::Kind::kNeedMore, searched_ + 1};
    }
    const uint64_t bytes = end ? searched_ + *end : window.bytes.size();
    begin();
    return {Next::Kind::kRecord, bytes, 0, bytes};
  }

 private:
  const char delimiter_;
  CsvScan scan_;
  uint64_t searched_ = 0;  // bytes of the window that the scan has seen
};

}  // namespace

std::unique_ptr<Framing> csv_framing(char delimiter) {
  return std::make_unique<CsvFraming>(delimiter);
}

}  // namespace penstock
