#include "penstock/pipeline/cache/snapshot_format.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/io/crc32c.h"

namespace penstock {

namespace {

constexpr uint64_t kSnapshotMagic = 0x31504e534b545350;  // "PSTKSNP1"
constexpr size_t kHeadChecked = offsetof(SnapshotRecordHeader, crc);
constexpr size_t kEndChecked = offsetof(SnapshotFooter, crc);

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace

std::array<std::byte, kSnapshotHeaderBytes> snapshot_header() {
  std::array<std::byte, kSnapshotHeaderBytes> front{};
  std::memcpy(front.data(), &kSnapshotMagic, sizeof(kSnapshotMagic));
  return front;
}

uint32_t SnapshotRecordHeader::checksum(std::span<const std::byte> contents) const {
  return crc32c(contents, crc32c(bytes_of(*this).first(kHeadChecked)));
}

std::array<std::byte, kSnapshotFooterBytes> SnapshotFooter::bytes() const {
  SnapshotFooter end = *this;
  end.crc = crc32c(bytes_of(end).first(kEndChecked));
  end.magic = kSnapshotMagic;
  std::array<std::byte, kSnapshotFooterBytes> bytes;
  std::memcpy(bytes.data(), &end, sizeof(end));
  return bytes;
}

void throw_corrupt_snapshot(const std::string& path, uint64_t at, const std::string& why) {
  throw Error(Code::kDataLoss, "snapshot", path + ", byte " + std::to_string(at) + ": " + why);
}

SnapshotFooter read_snapshot_footer(File& file, std::string& text) {
  const uint64_t size = file.size();
  if (size < kSnapshotHeaderBytes + kSnapshotFooterBytes) {
    throw_corrupt_snapshot(file.path(), size, "the file is too short for a snapshot");
  }
  const uint64_t at = size - kSnapshotFooterBytes;
  std::array<std::byte, kSnapshotHeaderBytes> front;
  SnapshotFooter end;
  const std::array<File::Segment, 2> both{
      File::Segment{0, front.data(), front.size()},
      File::Segment{at, reinterpret_cast<std::byte*>(&end), sizeof(end)}};
  file.read(both);
  if (front != snapshot_header()) throw_corrupt_snapshot(file.path(), 0, "the file is no snapshot");
  if (end.magic != kSnapshotMagic || end.crc != crc32c(bytes_of(end).first(kEndChecked))) {
    throw_corrupt_snapshot(file.path(), at, "the footer is damaged or missing");
  }
  if (end.index < kSnapshotHeaderBytes || end.index > at || end.index % kSnapshotUnit != 0 ||
      end.elements > (at - end.index) / sizeof(uint64_t) ||
      end.text != end.index + end.elements * sizeof(uint64_t) || end.text_bytes != at - end.text ||
      end.spec > end.index) {
    throw_corrupt_snapshot(file.path(), at, "the footer does not match the file");
  }
  text.resize(end.text_bytes);
  const File::Segment segment{end.text, reinterpret_cast<std::byte*>(text.data()), text.size()};
  if (!text.empty()) file.read({&segment, 1});
  if (crc32c(std::as_bytes(std::span(text))) != end.text_crc) {
    throw_corrupt_snapshot(file.path(), end.text, "the description of its elements is damaged");
  }
  return end;
}

void read_snapshot_index(File& file, const SnapshotFooter& end, std::span<uint64_t> words) {
  const File::Segment segment{end.index, reinterpret_cast<std::byte*>(words.data()),
                              words.size_bytes()};
  if (!words.empty()) file.read({&segment, 1});
  if (crc32c(std::as_bytes(words)) != end.index_crc) {
    throw_corrupt_snapshot(file.path(), end.index, "the index is damaged");
  }
  for (uint64_t word : words) {
    const SnapshotPlace place(word);
    if (place.offset() < kSnapshotHeaderBytes || place.bytes() == 0 || place.offset() > end.index ||
        place.bytes() > end.index - place.offset()) {
      throw_corrupt_snapshot(file.path(), end.index,
                             "the index refers to bytes that are not in the file");
    }
  }
}

namespace {

constexpr uint64_t kPlacesMagic = 0x317361736b70616e;
constexpr uint64_t kStretch = 64 << 10;  // unit of memory that is mapped at once
constexpr uint64_t kWords = kStretch;    // offset of the first word
constexpr uint64_t kMaxUnknown = uint64_t{1} << 31, kMinUnknown = 1 << 20;

uint64_t bytes_for(uint64_t positions) {
  return (kWords + positions * sizeof(uint64_t) + kStretch - 1) / kStretch * kStretch;
}

}  // namespace

static_assert(sizeof(SnapshotPlaces::Header) <= kWords);

SnapshotPlaces::SnapshotPlaces(std::optional<uint64_t> positions)
    : fd_(os::memory_file("penstock-snapshot")) {
  // Reserves address space for more positions than needed; for fewer if address space is limited.
  uint64_t tried = positions.value_or(kMaxUnknown);
  while (!reserve(tried)) {
    tried /= 2;
    if (positions || tried < kMinUnknown) {
      throw Error::from_errno(ENOMEM, "snapshot",
                              "mapping where " + std::to_string(tried) + " elements lie");
    }
  }
  map();
  header_->capacity = capacity_;
  header_->end = positions.value_or(kUnknown);
  header_->seed = kUnknown;
  header_->lost = positions ? 0 : kUnknown;
  header_->magic = kPlacesMagic;
}

SnapshotPlaces::SnapshotPlaces(os::Fd fd) : fd_(std::move(fd)) {
  struct stat found {};
  if (fstat(fd_.get(), &found) != 0 || found.st_size < static_cast<off_t>(bytes_for(0)) ||
      !reserve((static_cast<uint64_t>(found.st_size) - kWords) / sizeof(uint64_t))) {
    throw Error(Code::kInvalidArgument, "snapshot", "it is the cache of another plan");
  }
  map();
  if (header_->magic != kPlacesMagic || header_->capacity > capacity_) {
    throw Error(Code::kInvalidArgument, "snapshot", "it is the cache of another plan");
  }
  capacity_ = header_->capacity;
}

SnapshotPlaces::~SnapshotPlaces() {
  if (base_ != nullptr) os::unmap(base_, bytes_);
}

bool SnapshotPlaces::reserve(uint64_t positions) {
  if (positions > UINT64_MAX / sizeof(uint64_t) - 2 * kStretch) return false;
  const uint64_t bytes = bytes_for(positions);
  struct stat found {};
  try {
    if (fstat(fd_.get(), &found) != 0) return false;
    if (static_cast<uint64_t>(found.st_size) < bytes) os::resize_file(fd_.get(), bytes);
  } catch (const Error&) {
    return false;
  }
  void* base = os::reserve_mapping(fd_.get(), bytes, true);
  if (base == nullptr) return false;
  base_ = static_cast<std::byte*>(base);
  bytes_ = bytes;
  capacity_ = positions;
  return true;
}

void SnapshotPlaces::map() {
  there_ = std::make_unique<std::atomic<bool>[]>(bytes_ / kStretch);
  if (!populate(0)) throw Error::from_errno(ENOMEM, "snapshot", "memory for where elements lie");
  header_ = reinterpret_cast<Header*>(base_);
}

bool SnapshotPlaces::populate(uint64_t stretch) {
  if (there_[stretch].load(std::memory_order_relaxed)) return true;
  const uint64_t at = stretch * kStretch;
  if (os::populate_write(base_ + at, kStretch, fd_.get(), at) != 0) return false;
  there_[stretch].store(true, std::memory_order_relaxed);
  return true;
}

std::atomic<uint64_t>* SnapshotPlaces::word(uint64_t position) {
  const uint64_t at = kWords + position * sizeof(uint64_t);
  if (!populate(at / kStretch)) return nullptr;
  return reinterpret_cast<std::atomic<uint64_t>*>(base_ + at);
}

std::span<uint64_t> SnapshotPlaces::words(uint64_t count) {
  const uint64_t end = bytes_for(count) / kStretch;
  for (uint64_t stretch = 0; stretch < end; ++stretch) {
    if (!populate(stretch)) {
      throw Error::from_errno(ENOMEM, "snapshot", "memory for where its elements lie");
    }
  }
  return {reinterpret_cast<uint64_t*>(base_ + kWords), count};
}

}  // namespace penstock
