#include "penstock/io/record_index.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/io/crc32c.h"
#include "penstock/io/file.h"

namespace penstock {

RecordIndex::RecordIndex(const Parts& parts, std::shared_ptr<const void> owner)
    : parts_(parts), owner_(std::move(owner)) {
  const uint64_t groups = parts.size / kGroup + (parts.size % kGroup != 0);
  if (parts.step != 0 || (parts.groups.size() == groups && parts.relative.size() == parts.size)) {
    return;
  }
  throw Error(Code::kInvalidArgument, "index",
              std::to_string(parts.relative.size()) + " places for " + std::to_string(parts.size) +
                  " records");
}

RecordIndex RecordIndex::equal(uint64_t offset, uint64_t bytes, uint64_t count) {
  RecordIndex index;
  index.parts_.size = count;
  index.parts_.first = offset;
  index.parts_.step = bytes;
  index.parts_.end = offset + bytes * count;
  return index;
}

bool RecordIndex::is_damaged(uint64_t record) const {
  return std::binary_search(parts_.damaged.begin(), parts_.damaged.end(), record);
}

size_t RecordIndex::memory_bytes() const {
  return parts_.groups.size_bytes() + parts_.relative.size_bytes() + parts_.wide.size_bytes() +
         parts_.damaged.size_bytes();
}

void RecordIndex::Builder::add(uint64_t offset, bool damaged) {
  const uint64_t record = lists_.relative.size();
  if (damaged) lists_.damaged.push_back(record);
  if (record % kGroup == 0) lists_.groups.push_back(offset);
  uint64_t group = lists_.groups.back();
  if (!(group & kWide) && offset - group > std::numeric_limits<uint32_t>::max()) {
    widen();
    group = lists_.groups.back();
  }
  if (group & kWide) lists_.wide.push_back(offset);
  lists_.relative.push_back(group & kWide ? 0 : static_cast<uint32_t>(offset - group));
}

void RecordIndex::Builder::widen() {
  uint64_t& group = lists_.groups.back();
  const uint64_t place = lists_.wide.size();
  const size_t first = (lists_.groups.size() - 1) * kGroup;
  for (size_t i = first; i < lists_.relative.size(); ++i) {
    lists_.wide.push_back(group + lists_.relative[i]);
  }
  group = place | kWide;
}

RecordIndex RecordIndex::Builder::finish(uint64_t end) {
  lists_.groups.shrink_to_fit();
  lists_.relative.shrink_to_fit();
  lists_.wide.shrink_to_fit();
  lists_.damaged.shrink_to_fit();
  auto lists = std::make_shared<const Lists>(std::exchange(lists_, Lists()));
  Parts parts;
  parts.size = lists->relative.size();
  parts.end = end;
  parts.groups = lists->groups;
  parts.relative = lists->relative;
  parts.wide = lists->wide;
  parts.damaged = lists->damaged;
  return {parts, std::move(lists)};
}

namespace {

constexpr uint64_t kIndexMagic = 0x315844494b545350;  // "PSTKIDX1"
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 63;
constexpr size_t kPiece = 64 << 10;

// The header of a stored index; the places and the checksum follow.
struct IndexHeader {
  uint64_t magic = kIndexMagic;
  std::array<char, 8> format{};
  uint64_t bytes = 0;
  int64_t modified_ns = 0;
  uint64_t begin = 0;
  uint64_t first = 0;  // offset of the first place
  uint64_t places = 0;
  uint64_t list_bytes = 0;  // of the list of places
};
static_assert(sizeof(IndexHeader) == 64);
using Checksum = uint32_t;

IndexHeader head_of(const IndexedFile& of) {
  IndexHeader head;
  std::copy_n(of.format.begin(), std::min(of.format.size(), head.format.size()),
              head.format.begin());
  head.bytes = of.bytes;
  head.modified_ns = of.modified_ns;
  head.begin = of.begin;
  return head;
}

bool same_file(const IndexHeader& a, const IndexHeader& b) {
  return a.magic == b.magic && a.format == b.format && a.bytes == b.bytes &&
         a.modified_ns == b.modified_ns && a.begin == b.begin;
}

template <class T>
std::span<const std::byte> image_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

// A place in one word: its length, and whether it is damaged.
uint64_t word_of(const RecordIndex::Place& place) {
  return place.bytes << 1 | static_cast<uint64_t>(place.damaged);
}

uint64_t bytes_of_varint(uint64_t word) {
  uint64_t bytes = 1;
  while (word >>= 7) ++bytes;
  return bytes;
}

// Writes to a file and computes the checksum of all bytes.
class ChecksumWriter {
 public:
  explicit ChecksumWriter(Sink& sink) : sink_(sink) { buffer_.reserve(kPiece); }

  void put(std::byte byte) {
    if (buffer_.size() == kPiece) flush();
    buffer_.push_back(byte);
  }
  void put(std::span<const std::byte> bytes) {
    for (std::byte byte : bytes) put(byte);
  }
  void put_varint(uint64_t word) {
    for (; word >= 0x80; word >>= 7) put(static_cast<std::byte>(word | 0x80));
    put(static_cast<std::byte>(word));
  }
  void finish() {
    flush();
    sink_.write(image_of(Checksum{crc_}));
  }

 private:
  void flush() {
    crc_ = crc32c(buffer_, crc_);
    sink_.write(buffer_);
    buffer_.clear();
  }

  Sink& sink_;
  std::vector<std::byte> buffer_;
  uint32_t crc_ = 0;
};

// Reads a file from the front and computes the checksum of all bytes.
class ChecksumReader {
 public:
  ChecksumReader(File& file, uint64_t begin, uint64_t end, uint32_t crc)
      : file_(file),
        offset_(begin),
        end_(end),
        crc_(crc),
        buffer_(
            std::make_unique_for_overwrite<std::byte[]>(std::min<uint64_t>(kPiece, end - begin))) {}

  bool ended() const { return next_ == filled_ && offset_ == end_; }
  uint32_t crc() const { return crc_; }

  // nullopt: no complete varint follows.
  std::optional<uint64_t> varint() {
    uint64_t word = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (next_ == filled_ && !fill()) return {};
      const auto byte = static_cast<uint64_t>(buffer_[next_++]);
      word |= (byte & 0x7F) << shift;
      if (byte < 0x80) return word;
    }
    return {};
  }

 private:
  bool fill() {
    if (offset_ == end_) return false;
    filled_ = static_cast<size_t>(std::min<uint64_t>(kPiece, end_ - offset_));
    next_ = 0;
    const File::Segment segment{offset_, buffer_.get(), filled_};
    file_.read({&segment, 1});
    crc_ = crc32c({buffer_.get(), filled_}, crc_);
    offset_ += filled_;
    return true;
  }

  File& file_;
  uint64_t offset_;
  const uint64_t end_;
  uint32_t crc_;
  const std::unique_ptr<std::byte[]> buffer_;
  size_t next_ = 0, filled_ = 0;
};

template <class T>
T value_at(File& file, uint64_t offset) {
  T value;
  const File::Segment segment{offset, reinterpret_cast<std::byte*>(&value), sizeof(value)};
  file.read({&segment, 1});
  return value;
}

}  // namespace

void write_index(Sink& sidecar, const RecordIndex& index, const IndexedFile& of) {
  IndexHeader head = head_of(of);
  head.first = index.size() > 0 ? index.at(0).offset : of.begin;
  head.places = index.size();
  for (uint64_t i = 0; i < index.size(); ++i)
    head.list_bytes += bytes_of_varint(word_of(index.at(i)));
  ChecksumWriter out(sidecar);
  out.put(image_of(head));
  for (uint64_t i = 0; i < index.size(); ++i) out.put_varint(word_of(index.at(i)));
  out.finish();
}

std::optional<RecordIndex> read_index(File& sidecar, const IndexedFile& of) {
  const uint64_t size = sidecar.size();
  if (size < sizeof(IndexHeader) + sizeof(Checksum)) return {};
  const IndexHeader head = value_at<IndexHeader>(sidecar, 0);
  if (!same_file(head, head_of(of)) || head.bytes >= kMaxFileBytes) return {};
  const uint64_t end = size - sizeof(Checksum);
  if (head.list_bytes != end - sizeof(IndexHeader) || head.places > head.list_bytes) return {};
  if (head.first < head.begin || head.first > head.bytes) return {};
  // Only a CSV index may leave out bytes: empty lines.
  const bool leaves_out = of.format.starts_with("csv");
  if (head.first != head.begin && !leaves_out) return {};
  ChecksumReader list(sidecar, sizeof(IndexHeader), end, crc32c(image_of(head)));
  RecordIndex::Builder index;
  uint64_t offset = head.first;
  for (uint64_t i = 0; i < head.places; ++i) {
    const std::optional<uint64_t> word = list.varint();
    if (!word) return {};
    const uint64_t bytes = *word >> 1;
    if (bytes == 0 || bytes > head.bytes - offset) return {};
    index.add(offset, (*word & 1) != 0);
    offset += bytes;
  }
  if (!list.ended()) return {};
  if (offset != head.bytes && (head.places > 0 || !leaves_out)) return {};
  if (value_at<Checksum>(sidecar, end) != list.crc()) return {};
  return index.finish(head.bytes);
}

RecordIndex load_or_build_index(FileSystem& files, File& file, std::string format, uint64_t begin,
                                const std::function<RecordIndex()>& make) {
  auto* const dated = dynamic_cast<TimestampedFile*>(&file);
  if (dated == nullptr) return make();
  const IndexedFile of{std::move(format), begin, file.size(), dated->modified_ns()};
  const std::string path = file.path() + std::string(kIndexSuffix);
  try {
    if (auto index = read_index(*files.open(path), of)) return std::move(*index);
  } catch (const Error&) {  // no index, or unreadable
  }
  RecordIndex index = make();
  // The file changed while it was indexed, so it is unknown which version the index describes.
  if (file.size() != of.bytes || dated->modified_ns() != of.modified_ns) return index;
  try {
    const std::unique_ptr<Sink> sidecar = files.create(path);
    write_index(*sidecar, index, of);
    sidecar->commit();
  } catch (const Error&) {  // not stored; the caller gets the index anyway
  }
  return index;
}

}  // namespace penstock
