#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "penstock/base/os.h"

namespace penstock {

// Where the elements of a snapshot lie, in memory that processes share: a word for each position
// (SnapshotPlace; 0: it is not there), and what those agree on who write the file.
//
// Threads: any, of any process that attached it.
class SnapshotPlaces {
 public:
  struct Header {
    uint64_t magic, capacity;
    // Bytes of the file that are claimed, of which kClosed says that no more are.
    std::atomic<uint64_t> used;
    std::atomic<uint64_t> next;  // all words before it are set
    std::atomic<uint64_t> end;   // elements that there are; kUnknown: of a stream
    std::atomic<uint64_t> seed;  // that they are made with; kUnknown: nobody asked yet
    std::atomic<uint64_t> spec;  // where the first spec is
    // Where what was lost behind the end is said; 0: nothing was; kUnknown, until the end is set.
    std::atomic<uint64_t> lost;
    std::atomic<uint32_t> several;   // kNobodyKnows, kOthers: there are others, kNone
    std::atomic<uint32_t> finished;  // kFilling, kFinishing, kWhole
    char hidden[2048];               // the file's name until then
  };
  static constexpr uint64_t kClosed = uint64_t{1} << 63;
  static constexpr uint64_t kUnknown = UINT64_MAX;
  enum : uint32_t { kFilling, kFinishing, kWhole };
  enum : uint32_t { kNobodyKnows, kOthers, kNone };

  // For so many positions, or as many as there may be. Error kOutOfMemory, kSystem.
  explicit SnapshotPlaces(std::optional<uint64_t> positions);
  // Those of another process. Error kInvalidArgument: they are of another plan.
  explicit SnapshotPlaces(os::Fd fd);
  ~SnapshotPlaces();
  SnapshotPlaces(const SnapshotPlaces&) = delete;
  SnapshotPlaces& operator=(const SnapshotPlaces&) = delete;

  int fd() const { return fd_.get(); }
  Header& header() const { return *header_; }
  uint64_t capacity() const { return capacity_; }
  // REQUIRED: position < capacity(). nullptr: there is no memory for it.
  std::atomic<uint64_t>* word(uint64_t position);
  // The first `count` of them. Error kOutOfMemory.
  std::span<uint64_t> words(uint64_t count);

 private:
  bool reserve(uint64_t positions);
  void map();
  bool populate(uint64_t stretch);

  uint64_t capacity_ = 0, bytes_ = 0;
  os::Fd fd_;
  std::byte* base_ = nullptr;
  Header* header_ = nullptr;
  std::unique_ptr<std::atomic<bool>[]> there_;  // stretches that this process can touch
};

}  // namespace penstock
