#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "penstock/base/os.h"
#include "penstock/io/file.h"

namespace penstock {

// The bytes of a snapshot: elements as records that are read independently and in any order;
// docs/formats.md has the layout. Checksums cover every byte except padding.

inline constexpr uint64_t kSnapshotUnit = 32;  // records begin and end at multiples of it
inline constexpr uint64_t kSnapshotHeaderBytes = 64;
inline constexpr uint64_t kSnapshotFooterBytes = 64;
std::array<std::byte, kSnapshotHeaderBytes> snapshot_header();

// The header of a record: of an element, a spec, or the losses after the last element.
struct SnapshotRecordHeader {
  static constexpr uint64_t kSpec = UINT64_MAX, kLost = UINT64_MAX - 1;
  uint64_t bytes = 0;     // of the record's contents
  uint64_t spec = 0;      // offset of the record of the element's spec
  uint64_t position = 0;  // of the element; or kSpec, or kLost
  uint32_t lost = 0;      // bytes at the end of the contents: the losses before the element
  uint32_t crc = 0;       // CRC-32C of the fields before it, and of the contents

  uint32_t checksum(std::span<const std::byte> contents) const;
};
static_assert(sizeof(SnapshotRecordHeader) == kSnapshotUnit);

// A record's offset and length in a word that is never 0: 38 bits of offset and 26 of length, in
// units.
class SnapshotPlace {
 public:
  static constexpr uint64_t kMaxPlace = (uint64_t{1} << 38) * kSnapshotUnit;
  static constexpr uint64_t kMaxBytes = ((uint64_t{1} << 26) - 1) * kSnapshotUnit;

  explicit SnapshotPlace(uint64_t word) : word_(word) {}
  // REQUIRED: multiples of the unit, at most these limits.
  SnapshotPlace(uint64_t offset, uint64_t bytes)
      : word_(bytes / kSnapshotUnit << 38 | offset / kSnapshotUnit) {}
  uint64_t word() const { return word_; }
  uint64_t offset() const { return (word_ & ((uint64_t{1} << 38) - 1)) * kSnapshotUnit; }
  uint64_t bytes() const { return (word_ >> 38) * kSnapshotUnit; }  // header and padding included

 private:
  uint64_t word_;
};

// The footer of a file.
struct SnapshotFooter {
  uint64_t elements = 0;
  uint64_t index = 0;  // offset of the words, one for each element
  uint64_t text = 0;   // offset of the description of the elements, after the words
  uint64_t text_bytes = 0;
  uint64_t spec = 0;  // offset of the spec if all elements share one; 0: several, or none
  uint32_t index_crc = 0, text_crc = 0;
  uint32_t zero = 0, crc = 0;
  uint64_t magic = 0;

  // The bytes, with checksum and magic set.
  std::array<std::byte, kSnapshotFooterBytes> bytes() const;
};
static_assert(sizeof(SnapshotFooter) == kSnapshotFooterBytes);

// Throws an Error kDataLoss that names the file and the byte.
[[noreturn]] void throw_corrupt_snapshot(const std::string& path, uint64_t at,
                                         const std::string& why);

// Reads a file's footer and `text`. Error kDataLoss: no snapshot, an incomplete one, or damaged.
// Allocates no more memory than the file has bytes for.
SnapshotFooter read_snapshot_footer(File& file, std::string& text);
// Reads and checks the words, into memory for `footer.elements` of them. Error kDataLoss.
void read_snapshot_index(File& file, const SnapshotFooter& footer, std::span<uint64_t> words);

// The places of a snapshot's elements, in memory that processes share: a word per position
// (SnapshotPlace; 0: not written yet), and a header that coordinates the processes that fill the
// file.
//
// Threads: any, of any process that attached it.
class SnapshotPlaces {
 public:
  struct Header {
    uint64_t magic, capacity;
    // Bytes of the file that are claimed. With kClosed set no more can be claimed.
    std::atomic<uint64_t> used;
    std::atomic<uint64_t> next;  // all words before it are set
    std::atomic<uint64_t> end;   // number of elements; kUnknown: a stream that has not ended
    std::atomic<uint64_t> seed;  // seed of the elements; kUnknown: not set yet
    std::atomic<uint64_t> spec;  // offset of the first spec
    // Offset of the losses after the end; 0: none; kUnknown: the end is not set.
    std::atomic<uint64_t> lost;
    std::atomic<uint32_t> several;   // kUnknownSpecs; kOthers: there are other specs; kNone
    std::atomic<uint32_t> finished;  // kFilling, kFinishing, kWhole
    char hidden[2048];               // the file's name before it is kWhole
  };
  static constexpr uint64_t kClosed = uint64_t{1} << 63;
  static constexpr uint64_t kUnknown = UINT64_MAX;
  enum : uint32_t { kFilling, kFinishing, kWhole };
  enum : uint32_t { kUnknownSpecs, kOthers, kNone };

  // For this number of positions; nothing: as many as possible. Error kOutOfMemory, kSystem.
  explicit SnapshotPlaces(std::optional<uint64_t> positions);
  // Attaches those of another process. Error kInvalidArgument: they belong to another plan.
  explicit SnapshotPlaces(os::Fd fd);
  ~SnapshotPlaces();
  SnapshotPlaces(const SnapshotPlaces&) = delete;
  SnapshotPlaces& operator=(const SnapshotPlaces&) = delete;

  int fd() const { return fd_.get(); }
  Header& header() const { return *header_; }
  uint64_t capacity() const { return capacity_; }
  // REQUIRED: position < capacity(). nullptr: no memory.
  std::atomic<uint64_t>* word(uint64_t position);
  // The first `count` words. Error kOutOfMemory.
  std::span<uint64_t> words(uint64_t count);

 private:
  bool reserve(uint64_t positions);
  void map();
  bool populate(uint64_t stretch);

  uint64_t capacity_ = 0, bytes_ = 0;
  os::Fd fd_;
  std::byte* base_ = nullptr;
  Header* header_ = nullptr;
  std::unique_ptr<std::atomic<bool>[]> there_;  // per stretch: mapped in this process
};

}  // namespace penstock
