#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "penstock/base/os.h"

namespace penstock {

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
