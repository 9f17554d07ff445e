#include "penstock/io/lines.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace penstock {
namespace {

constexpr auto kLineFeed = std::byte{'\n'}, kReturn = std::byte{'\r'};

// The first line feed, or `end`.
const std::byte* line_feed(const std::byte* at, const std::byte* end) {
  const void* found = at == end ? nullptr : std::memchr(at, '\n', static_cast<size_t>(end - at));
  return found == nullptr ? end : static_cast<const std::byte*>(found);
}

}  // namespace

RecordIndex index_lines(File& file) {
  constexpr uint64_t kPiece = 256 << 10;
  const uint64_t size = file.size();
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(std::min(kPiece, size));
  RecordIndex::Builder index;
  bool begins = true;  // a line does, at the byte that comes next
  for (uint64_t offset = 0; offset < size;) {
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
    if (bytes.back() == kLineFeed) {
      bytes = bytes.first(bytes.size() - 1);
      if (!bytes.empty() && bytes.back() == kReturn) bytes = bytes.first(bytes.size() - 1);
    }
    lines_[row] = bytes;
  }
}

bool LineReader::may_lack_end(uint64_t line) const {
  return line + 1 == files_->end(files_->file_of(line));
}

}  // namespace penstock
