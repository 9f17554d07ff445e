#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/io/file.h"

namespace penstock {

// Where each record of a file lies. Places follow each other without gaps: bytes that belong to no
// record are a damaged place, which has a number like a record. Costs 4.1 bytes per record: every
// 64th offset is stored whole, the others relative to it. A group of 64 that spans more than 4 GiB
// costs 8 bytes per record.
//
// Immutable: any thread may call anything.
class RecordIndex {
 public:
  struct Place {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    bool damaged = false;
    bool operator==(const Place&) const = default;
  };
  // The index's arrays in memory, for another process that maps them.
  struct Parts {
    uint64_t size = 0, end = 0;
    uint64_t first = 0, step = 0;      // equal(): offset of the first, length of each; else 0
    std::span<const uint64_t> groups;  // each group's first place, or an index into `wide`
    std::span<const uint32_t> relative;
    std::span<const uint64_t> wide, damaged;
  };
  class Builder;

  RecordIndex() = default;  // of an empty file
  // An index over the parts() of another one, which `owner` keeps alive. Error kInvalidArgument:
  // the parts are too short for their number of records.
  RecordIndex(const Parts& parts, std::shared_ptr<const void> owner);

  // `count` records of `bytes` bytes each, the first one at `offset`. Uses no memory.
  // REQUIRED: all of them end before 2^63.
  static RecordIndex equal(uint64_t offset, uint64_t bytes, uint64_t count);

  uint64_t size() const { return parts_.size; }
  uint64_t file_bytes() const { return parts_.end; }  // where the last place ends
  const Parts& parts() const { return parts_; }       // as long as a copy of the index lives

  // REQUIRED: record < size().
  Place at(uint64_t record) const {
    const uint64_t begin = offset(record);
    const uint64_t end = record + 1 < parts_.size ? offset(record + 1) : parts_.end;
    return {begin, end - begin, !parts_.damaged.empty() && is_damaged(record)};
  }

  // Prefetches the data of at(record), for access to many records in random order.
  void prefetch(uint64_t record) const {
    if (parts_.step != 0) return;
    __builtin_prefetch(&parts_.groups[record / kGroup]);
    __builtin_prefetch(&parts_.relative[record]);
  }

  // The damaged places' numbers, ascending.
  std::span<const uint64_t> damaged() const { return parts_.damaged; }

  size_t memory_bytes() const;

 private:
  static constexpr uint64_t kGroup = 64;
  static constexpr uint64_t kWide = uint64_t{1} << 63;  // the other bits index `wide`

  uint64_t offset(uint64_t record) const {
    if (parts_.step != 0) return parts_.first + record * parts_.step;
    const uint64_t group = parts_.groups[record / kGroup];
    if (group & kWide) [[unlikely]]
      return parts_.wide[(group & ~kWide) + record % kGroup];
    return group + parts_.relative[record];
  }
  bool is_damaged(uint64_t record) const;

  Parts parts_;
  std::shared_ptr<const void> owner_;
};

// Builds an index, place after place. One thread.
class RecordIndex::Builder {
 public:
  // The next place begins at `offset`, where the previous one ends.
  // REQUIRED: offset is larger than the one before, and less than 2^63.
  void add(uint64_t offset, bool damaged = false);

  // The last place ends at `end`. The Builder is empty afterwards.
  RecordIndex finish(uint64_t end);

 private:
  struct Lists {
    std::vector<uint64_t> groups;
    std::vector<uint32_t> relative;
    std::vector<uint64_t> wide, damaged;
  };
  void widen();

  Lists lists_;
};

// The progress of a pass over a file, which another thread may watch and stop. Any thread.
struct Progress {
  std::atomic<uint64_t> bytes{0};
  std::atomic<bool> stop{false};  // set: the pass ends with Error kClosed

  // Called by the pass with its position. Error kClosed: the pass was stopped.
  void reached(uint64_t offset, const std::string& path) {
    bytes.store(offset, std::memory_order_relaxed);
    if (!stop.load(std::memory_order_relaxed)) return;
    throw Error(Code::kClosed, "index", "stopped while " + path + " was indexed");
  }
};

// Record indices that are stored beside their files, so that later runs need not index the files
// again; docs/formats.md has the bytes. An index records the file's format, size and modification
// time, and has a checksum over all of its bytes. An index that is damaged, or does not match the
// file's current state, is never used.

// Appended to a file's name to get the name of its index. No pattern of glob() matches it.
inline constexpr std::string_view kIndexSuffix = ".penstock-index";

// The file that an index describes.
struct IndexedFile {
  std::string format;       // of the records, at most 8 characters: "tfrecord"
  uint64_t begin = 0;       // the earliest offset of the first record
  uint64_t bytes = 0;       // of the file
  int64_t modified_ns = 0;  // as in TimestampedFile
  bool operator==(const IndexedFile&) const = default;
};

// Error kSystem. REQUIRED: the index ends at the end of the file. One thread.
void write_index(Sink& sidecar, const RecordIndex& index, const IndexedFile& of);

// nullopt: the index is damaged, or does not match the file. Checks every length, and allocates no
// more memory than `sidecar` has bytes for. Errors as File::read(). Any thread.
std::optional<RecordIndex> read_index(File& sidecar, const IndexedFile& of);

// The stored index of `file`. Without a valid one, calls `make` and stores its result. A failure to
// store the index (a read-only folder, a full disk, a file that changes meanwhile or has no
// modification time) is ignored. Several processes may call this for one file at the same time:
// each gets a complete index, and so does the disk. Errors of `make`, and of `file`. Any thread.
RecordIndex load_or_build_index(FileSystem& files, File& file, std::string format, uint64_t begin,
                                const std::function<RecordIndex()>& make);

}  // namespace penstock
