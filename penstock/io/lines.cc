#include "penstock/io/lines.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "penstock/base/utf8.h"

namespace penstock {
namespace {

constexpr const char* kNoText = "the line is no UTF-8";
constexpr auto kLineFeedByte = std::byte{'\n'}, kReturnByte = std::byte{'\r'};

// The first line feed, or `end`.
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
  void begin() override { searched_ = known_ = doubtful_ = 0; }

  Cut cut(const Front& front) override {
    const std::byte* const first = front.bytes.data();
    const std::byte* const end = first + front.bytes.size();
    const std::byte* const feed = line_feed(first + searched_, end);
    if (feed == end && !front.whole()) {
      searched_ = front.bytes.size();
      return {Cut::Kind::kMore, searched_ + 1};
    }
    searched_ = 0;
    const auto line = front.bytes.first(static_cast<size_t>(feed - first) + (feed != end));
    if (!is_text(front.bytes, line)) return {Cut::Kind::kBad, line.size(), 0, 0, kNoText};
    return {Cut::Kind::kRecord, line.size(), 0, without_end(line).size()};
  }

 private:
  // Whether the front's first line is. What is behind it is looked at together with it, which takes
  // a fraction of the time.
  bool is_text(std::span<const std::byte> front, std::span<const std::byte> line) {
    constexpr size_t kTogether = 16 << 10;
    if (line.size() <= known_) {
      known_ -= line.size();
      return true;
    }
    if (line.size() <= doubtful_) {
      doubtful_ -= line.size();
      return is_utf8(line);
    }
    size_t bytes = std::max(std::min(front.size(), kTogether), line.size());
    // But for the last character, of which there may be more.
    for (int n = 0; n < 4 && bytes > line.size(); ++n) {
      if ((front[--bytes] & std::byte{0xC0}) != std::byte{0x80}) break;
    }
    const bool all = is_utf8(front.first(bytes));
    known_ = all ? bytes - line.size() : 0;
    doubtful_ = all ? 0 : bytes - line.size();
    return all || is_utf8(line);
  }

  uint64_t searched_ = 0;  // bytes of the front without a line's end
  // Bytes of the front: that are UTF-8; or that are to be looked at line by line.
  uint64_t known_ = 0, doubtful_ = 0;
};

}  // namespace

RecordIndex index_lines(File& file, Progress* progress) {
  constexpr uint64_t kPiece = 256 << 10;
  const uint64_t size = file.size();
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(std::min(kPiece, size));
  RecordIndex::Builder index;
  bool begins = true;  // a line does, at the byte that comes next
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
    // A line has one end, and that at its end.
    auto sound = [&] {
      return feed() + 1 == bytes.data() + bytes.size() ||
             (feed() == bytes.data() + bytes.size() && may_lack_end(lines[row]));
    };
    lines_[row] = {};
    if (bytes.empty()) continue;  // failed
    if (!sound()) {
      records_.fail(row, Code::kDataLoss, "another line than when the file was indexed");
      continue;
    }
    lines_[row] = without_end(bytes);
  }
  for (size_t row = 0; row < lines.size();) row = check_text(row, lines.size());
}

// Of the rows that lie side by side in memory from this one on, together: no character goes over a
// line's end. Returns the row behind them.
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
    records_.fail(row, Code::kDataLoss, kNoText);
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
  return begins_as_gzip(std::span(first).first(bytes)) || named_as_gzip(file.path())
             ? Compression::kGzip
             : Compression::kNone;
}

}  // namespace penstock
