#include "penstock/io/snapshot_format.h"

#include <cstring>

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

}  // namespace penstock
