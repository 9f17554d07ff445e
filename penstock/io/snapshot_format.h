#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "penstock/io/file.h"

namespace penstock {

// The bytes of a snapshot: elements, each a record that is read by itself, at any place, and in any
// order; docs/formats.md has them. All of it is covered by checksums but what nobody reads.

inline constexpr uint64_t kSnapshotUnit = 32;  // where records begin, and what they are long
inline constexpr uint64_t kSnapshotFront = 64;
inline constexpr uint64_t kSnapshotEnd = 64;
std::array<std::byte, kSnapshotFront> snapshot_front();

// What a record begins with: an element's, a spec's, or of what was lost behind the last element.
struct SnapshotHead {
  static constexpr uint64_t kSpec = UINT64_MAX, kLost = UINT64_MAX - 1;
  uint64_t bytes = 0;     // behind it
  uint64_t spec = 0;      // where the record of the element's spec begins
  uint64_t position = 0;  // of the element; or it is kSpec, or kLost
  uint32_t lost = 0;      // the last so many bytes say what was lost on the way to the element
  uint32_t crc = 0;       // CRC-32C of what is in front of it, and of the bytes

  uint32_t checksum(std::span<const std::byte> contents) const;
};
static_assert(sizeof(SnapshotHead) == kSnapshotUnit);

// Where a record lies, in a word that is never 0: in units, 38 bits of place and 26 of length.
class SnapshotPlace {
 public:
  static constexpr uint64_t kMostPlace = (uint64_t{1} << 38) * kSnapshotUnit;
  static constexpr uint64_t kMostBytes = ((uint64_t{1} << 26) - 1) * kSnapshotUnit;

  explicit SnapshotPlace(uint64_t word) : word_(word) {}
  // REQUIRED: multiples of a unit, below these limits.
  SnapshotPlace(uint64_t offset, uint64_t bytes)
      : word_(bytes / kSnapshotUnit << 38 | offset / kSnapshotUnit) {}
  uint64_t word() const { return word_; }
  uint64_t offset() const { return (word_ & ((uint64_t{1} << 38) - 1)) * kSnapshotUnit; }
  uint64_t bytes() const { return (word_ >> 38) * kSnapshotUnit; }  // head and filling included

 private:
  uint64_t word_;
};

// The end of a file, which says what is in it.
struct SnapshotEnd {
  uint64_t elements = 0;
  uint64_t index = 0;  // where the words begin, one for each element
  uint64_t text = 0;   // where what is said of the elements begins: behind the words
  uint64_t text_bytes = 0;
  uint64_t spec = 0;  // where the one spec of all elements is; 0: there are several, or none
  uint32_t index_crc = 0, text_crc = 0;
  uint32_t zero = 0, crc = 0;
  uint64_t magic = 0;

  // With its checksum and magic.
  std::array<std::byte, kSnapshotEnd> bytes() const;
};
static_assert(sizeof(SnapshotEnd) == kSnapshotEnd);

// Error kDataLoss that names the file and the byte.
[[noreturn]] void lose_snapshot(const std::string& path, uint64_t at, const std::string& why);

// What a file says at its end, and `text`. Error kDataLoss: it is no snapshot, not a whole one, or
// damaged. Takes no memory that the file does not have bytes for.
SnapshotEnd read_snapshot_end(File& file, std::string& text);
// The words, checked, into memory for `end.elements` of them. Error kDataLoss.
void read_snapshot_index(File& file, const SnapshotEnd& end, std::span<uint64_t> words);

}  // namespace penstock
