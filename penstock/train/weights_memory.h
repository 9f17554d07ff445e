#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "penstock/base/os.h"
#include "penstock/train/layout.h"

// The memory that a learner and its readers share. Only weights_memory, publisher and tests use
// these words.
//
//   page 0        WeightsHeader
//   kRowsAt       ReaderRow[kReaders], one for each reader's connection
//   kJsonAt       the layout, as JSON
//   slots_at      slots of slot_bytes each: the floats of one version; readers map them read-only
namespace penstock::train {

inline constexpr uint32_t kSlots = 63;  // versions that can be held at a time, plus the current one
inline constexpr uint32_t kReaders = 1024;  // Model objects, in all processes

struct WeightsHeader {
  static constexpr uint64_t kMagic = 0x31746877736B746E;  // "ntkswht1"

  uint64_t magic;
  uint64_t layout_hash;
  uint64_t json_bytes;
  uint64_t slots_at;
  uint64_t slot_bytes;
  std::atomic<uint32_t> rows_used;  // rows from this index on are unused
  // The current slot and its version; 0 before the first. See pack() in weights_memory.cc.
  alignas(64) std::atomic<uint64_t> current;
  std::atomic<uint32_t> changes;  // incremented by every version; readers that wait sleep on it
};

struct alignas(256) ReaderRow {
  std::atomic<uint32_t> waiting;        // threads that sleep on `changes` or are about to
  std::atomic<uint32_t> holds[kSlots];  // number of reads that hold each slot
};
static_assert(sizeof(ReaderRow) == 256);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

inline constexpr uint64_t kRowsAt = 4096;
inline constexpr uint64_t kJsonAt = kRowsAt + kReaders * sizeof(ReaderRow);
static_assert(sizeof(WeightsHeader) <= kRowsAt);

// One mapping of the shared memory, with the operations of both ends, except the choice of slots
// (SlotWriter). docs/training.md, section 5, has the protocol and its proof. Threads: any.
class WeightsMemory {
  struct Token {};  // only make() and open() can construct

 public:
  struct Version {
    uint64_t number = 0;
    uint32_t slot = 0;
  };
  static constexpr uint64_t kMaxVersion = (uint64_t{1} << 57) - 1;

  // The learner's end; nothing is published. Error kOutOfMemory, kSystem (descriptors).
  static std::shared_ptr<WeightsMemory> make(Layout layout);
  // A reader's end, from a received descriptor, which is not kept. Slots are mapped read-only.
  // Error kInvalidArgument: not the memory of a learner; kOutOfMemory (address space).
  static std::shared_ptr<WeightsMemory> open(os::Fd fd);

  WeightsMemory(Token, Layout layout, os::Fd fd, void* base, size_t slots_at, size_t slot_bytes,
                size_t mapped);
  ~WeightsMemory();
  WeightsMemory(const WeightsMemory&) = delete;
  WeightsMemory& operator=(const WeightsMemory&) = delete;

  const Layout& layout() const { return layout_; }
  int fd() const { return fd_.get(); }  // at the learner's end; else -1
  // A slot's floats, layout().floats() of them. A reader reads only slots that it holds.
  std::span<float> values(uint32_t slot) const;

  // The current version; nothing before the first. Error kDataLoss, also of hold(): the memory is
  // damaged.
  std::optional<Version> newest() const;
  // The current version, held in this row until release(): its slot is not written to. Never waits.
  std::optional<Version> hold(uint32_t row) const;
  void release(uint32_t row, uint32_t slot) const;
  // Sleeps until a change, wake(), or the timeout (< 0: none); returns immediately if done(). May
  // return early.
  template <typename Done>
  void sleep(uint32_t row, int64_t timeout_ns, Done done) const {
    announce_sleeper(row, 1);
    const uint32_t seen = changes();
    if (!done()) sleep_while(seen, timeout_ns);
    announce_sleeper(row, -1);
  }
  // Wakes all sleepers, of all processes.
  void wake() const;
  // Wakes threads that sleep since before the last change.
  void wake_late() const;

  // The learner's side. REQUIRED: one thread at a time for each of the two groups.
  // -- held(): a bit for each slot that some row holds. announce(): makes a version current and
  // wakes one sleeper, which wakes the others. Returns the number of sleepers: if it is above 1,
  // call wake_late() soon, since a woken thread may be stopped or killed.
  uint64_t held() const;
  bool holds_any(uint32_t row) const;
  uint32_t announce(Version version) const;
  // -- clear(): resets a reader's row. use_rows(): sets how many rows, from the first on, are in
  // use.
  void clear(uint32_t row) const;
  void use_rows(uint32_t count) const;

  // A slot's offset in the file, and its bytes.
  uint64_t offset_of(uint32_t slot) const;
  size_t slot_bytes() const;

 private:
  WeightsHeader& header() const;
  ReaderRow& row_at(uint32_t row) const;
  uint32_t changes() const;
  void announce_sleeper(uint32_t row, int change) const;
  void sleep_while(uint32_t seen, int64_t timeout_ns) const;
  void wake_older(int how_many) const;

  const Layout layout_;
  const os::Fd fd_;
  std::byte* const base_;
  const size_t mapped_;
  const size_t slots_at_;  // copied once: shared memory may change
  const size_t slot_bytes_;
};

}  // namespace penstock::train
