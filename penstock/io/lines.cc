#include "penstock/io/lines.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/text.h"

namespace penstock {

namespace {

constexpr const char* kInvalidUtf8 = "the line is not UTF-8";
constexpr auto kLineFeedByte = std::byte{'\n'}, kReturnByte = std::byte{'\r'};

// The position of the first line feed, or `end`.
const std::byte* line_feed(const std::byte* at, const std::byte* end) {
  const void* found = at == end ? nullptr : std::memchr(at, '\n', static_cast<size_t>(end - at));
  return found == nullptr ? end : static_cast<const std::byte*>(found);
}

// A line without its end, if it has one.
std::span<const std::byte> without_end(std::span<const std::byte> line) {
  if (line.empty() || line.back() != kLineFeedByte) return line;
  line = line.first(line.size() - 1);
  return !line.empty() && line.back() == kReturnByte ? line.first(line.size() - 1) : line;
}

class LineFraming : public Framing {
 public:
  void begin() override { searched_ = known_ = mixed_ = 0; }

  Next next(const Window& window) override {
    const std::byte* const first = window.bytes.data();
    const std::byte* const end = first + window.bytes.size();
    const std::byte* const feed = line_feed(first + searched_, end);
    if (feed == end && !window.complete()) {
      searched_ = window.bytes.size();
      return {Next::Kind::kNeedMore, searched_ + 1};
    }
    searched_ = 0;
    const auto line = window.bytes.first(static_cast<size_t>(feed - first) + (feed != end));
    if (!is_text(window.bytes, line))
      return {Next::Kind::kCorrupt, line.size(), 0, 0, kInvalidUtf8};
    return {Next::Kind::kRecord, line.size(), 0, without_end(line).size()};
  }

 private:
  // Whether the first line is UTF-8. Checks following bytes in the same pass, which is much faster
  // than line by line.
  bool is_text(std::span<const std::byte> front, std::span<const std::byte> line) {
    constexpr size_t kTogether = 16 << 10;
    if (line.size() <= known_) {
      known_ -= line.size();
      return true;
    }
    if (line.size() <= mixed_) {
      mixed_ -= line.size();
      return is_utf8(line);
    }
    size_t bytes = std::max(std::min(front.size(), kTogether), line.size());
    // Without the last character, which may be incomplete.
    for (int n = 0; n < 4 && bytes > line.size(); ++n) {
      if ((front[--bytes] & std::byte{0xC0}) != std::byte{0x80}) break;
    }
    const bool all = is_utf8(front.first(bytes));
    known_ = all ? bytes - line.size() : 0;
    mixed_ = all ? 0 : bytes - line.size();
    return all || is_utf8(line);
  }

  uint64_t searched_ = 0;  // bytes of the window without a line end
  // Bytes of the window known to be UTF-8; bytes that must be checked line by line.
  uint64_t known_ = 0, mixed_ = 0;
};

}  // namespace

RecordIndex index_lines(File& file, Progress* progress) {
  constexpr uint64_t kPiece = 256 << 10;
  const uint64_t size = file.size();
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(std::min(kPiece, size));
  RecordIndex::Builder index;
  bool begins = true;  // the next byte begins a line
  for (uint64_t offset = 0; offset < size;) {
    if (progress != nullptr) progress->reached(offset, file.path());
    const uint64_t bytes = std::min(kPiece, size - offset);
    const File::Segment segment{offset, buffer.get(), bytes};
    file.read({&segment, 1});
    const std::byte* const end = buffer.get() + bytes;
    for (const std::byte* at = buffer.get(); at != end;) {
      if (begins) index.add(offset + static_cast<uint64_t>(at - buffer.get()));
      at = line_feed(at, end);
      begins = at != end;
      if (begins) ++at;
    }
    offset += bytes;
  }
  return index.finish(size);
}

LineReader::LineReader(std::shared_ptr<const RecordFiles> files)
    : files_(std::move(files)), records_(files_, "lines", false) {}

void LineReader::read(std::span<const uint64_t> lines) {
  records_.read(lines);
  for (size_t row = 0; row < lines.size(); ++row) {
    std::span<const std::byte> bytes = records_.bytes(row);
    auto feed = [&] { return line_feed(bytes.data(), bytes.data() + bytes.size()); };
    // A line must have exactly one line end, at its end.
    auto sound = [&] {
      return feed() + 1 == bytes.data() + bytes.size() ||
             (feed() == bytes.data() + bytes.size() && may_lack_end(lines[row]));
    };
    lines_[row] = {};
    if (bytes.empty()) continue;  // failed
    if (!sound()) {
      records_.fail(row, Code::kDataLoss, "the line has changed since the file was indexed");
      continue;
    }
    lines_[row] = without_end(bytes);
  }
  for (size_t row = 0; row < lines.size();) row = check_text(row, lines.size());
}

// Checks all rows that are adjacent in memory, from this one on, in one pass: no character extends
// over a line end. Returns the row after them.
size_t LineReader::check_text(size_t row, size_t rows) {
  std::span<const std::byte> run = records_.bytes(row);
  size_t end = row + 1;
  for (; end < rows && !run.empty() && run.back() == kLineFeedByte; ++end) {
    const std::span<const std::byte> next = records_.bytes(end);
    if (next.data() != run.data() + run.size()) break;
    run = {run.data(), run.size() + next.size()};
  }
  if (is_utf8(run)) return end;
  for (; row < end; ++row) {
    if (is_utf8(lines_[row])) continue;
    records_.fail(row, Code::kDataLoss, kInvalidUtf8);
    lines_[row] = {};
  }
  return end;
}

bool LineReader::may_lack_end(uint64_t line) const {
  return line + 1 == files_->end(files_->file_of(line));
}

std::unique_ptr<Framing> line_framing() { return std::make_unique<LineFraming>(); }

Compression compression_of_text(File& file) {
  std::array<std::byte, 4> first;
  const uint64_t bytes = std::min<uint64_t>(file.size(), first.size());
  if (bytes == 0) return Compression::kNone;
  const File::Segment segment{0, first.data(), bytes};
  file.read({&segment, 1});
  return has_gzip_magic(std::span(first).first(bytes)) || has_gzip_extension(file.path())
             ? Compression::kGzip
             : Compression::kNone;
}

std::optional<uint64_t> LineCounter::line_at(const std::string& path, Compression compression,
                                             uint64_t offset) try {
  if (offset > kMaxScannedBytes) return std::nullopt;
  if (!source_ || path != path_ || offset < begin_) {
    source_.emplace(pool_->get(pool_->add(path)), compression);
    path_ = path;
    begin_ = bytes_ = lines_ = 0;
  }
  while (offset >= begin_ + bytes_) {
    if (!next_piece()) return std::nullopt;
  }
  const auto at = piece_.begin() + static_cast<std::ptrdiff_t>(offset - begin_);
  return 1 + lines_ + static_cast<uint64_t>(std::count(piece_.begin(), at, std::byte{'\n'}));
} catch (const Error&) {
  source_.reset();
  return std::nullopt;
}

bool LineCounter::next_piece() {
  const auto end = piece_.begin() + static_cast<std::ptrdiff_t>(bytes_);
  lines_ += static_cast<uint64_t>(std::count(piece_.begin(), end, std::byte{'\n'}));
  begin_ += bytes_;
  piece_.resize(64 << 10);
  bytes_ = source_->read(piece_);
  return bytes_ > 0;
}

}  // namespace penstock
