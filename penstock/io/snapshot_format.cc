#include "penstock/io/snapshot_format.h"

#include <cstring>

#include "penstock/base/error.h"
#include "penstock/io/crc32c.h"

namespace penstock {
namespace {

constexpr uint64_t kSnapshotMagic = 0x31504e534b545350;  // "PSTKSNP1"
constexpr size_t kHeadChecked = offsetof(SnapshotHead, crc);
constexpr size_t kEndChecked = offsetof(SnapshotEnd, crc);

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace

std::array<std::byte, kSnapshotFront> snapshot_front() {
  std::array<std::byte, kSnapshotFront> front{};
  std::memcpy(front.data(), &kSnapshotMagic, sizeof(kSnapshotMagic));
  return front;
}

uint32_t SnapshotHead::checksum(std::span<const std::byte> contents) const {
  return crc32c(contents, crc32c(bytes_of(*this).first(kHeadChecked)));
}

std::array<std::byte, kSnapshotEnd> SnapshotEnd::bytes() const {
  SnapshotEnd end = *this;
  end.crc = crc32c(bytes_of(end).first(kEndChecked));
  end.magic = kSnapshotMagic;
  std::array<std::byte, kSnapshotEnd> bytes;
  std::memcpy(bytes.data(), &end, sizeof(end));
  return bytes;
}

void lose_snapshot(const std::string& path, uint64_t at, const std::string& why) {
  throw Error(Code::kDataLoss, "snapshot", path + ", byte " + std::to_string(at) + ": " + why);
}

SnapshotEnd read_snapshot_end(File& file, std::string& text) {
  const uint64_t size = file.size();
  if (size < kSnapshotFront + kSnapshotEnd) {
    lose_snapshot(file.path(), size, "it is too short for a snapshot");
  }
  const uint64_t at = size - kSnapshotEnd;
  std::array<std::byte, kSnapshotFront> front;
  SnapshotEnd end;
  const std::array<File::Segment, 2> both{
      File::Segment{0, front.data(), front.size()},
      File::Segment{at, reinterpret_cast<std::byte*>(&end), sizeof(end)}};
  file.read(both);
  if (front != snapshot_front()) lose_snapshot(file.path(), 0, "it is no snapshot");
  if (end.magic != kSnapshotMagic || end.crc != crc32c(bytes_of(end).first(kEndChecked))) {
    lose_snapshot(file.path(), at, "its end is damaged, or missing");
  }
  if (end.index < kSnapshotFront || end.index > at || end.index % kSnapshotUnit != 0 ||
      end.elements > (at - end.index) / sizeof(uint64_t) ||
      end.text != end.index + end.elements * sizeof(uint64_t) || end.text_bytes != at - end.text ||
      end.spec > end.index) {
    lose_snapshot(file.path(), at, "its end does not fit the file");
  }
  text.resize(end.text_bytes);
  const File::Segment segment{end.text, reinterpret_cast<std::byte*>(text.data()), text.size()};
  if (!text.empty()) file.read({&segment, 1});
  if (crc32c(std::as_bytes(std::span(text))) != end.text_crc) {
    lose_snapshot(file.path(), end.text, "what it says of its elements is damaged");
  }
  return end;
}

void read_snapshot_index(File& file, const SnapshotEnd& end, std::span<uint64_t> words) {
  const File::Segment segment{end.index, reinterpret_cast<std::byte*>(words.data()),
                              words.size_bytes()};
  if (!words.empty()) file.read({&segment, 1});
  if (crc32c(std::as_bytes(words)) != end.index_crc) {
    lose_snapshot(file.path(), end.index, "its index is damaged");
  }
  for (uint64_t word : words) {
    const SnapshotPlace place(word);
    if (place.offset() < kSnapshotFront || place.bytes() == 0 || place.offset() > end.index ||
        place.bytes() > end.index - place.offset()) {
      lose_snapshot(file.path(), end.index, "its index speaks of what is not there");
    }
  }
}

}  // namespace penstock
