#pragma once

#include <atomic>
#include <cstdint>

// The words in the memory that a learner and its readers share. Only weights_memory.cc and
// slot_writer.cc see them.
//
//   page 0        WeightsHeader
//   kRowsAt       ReaderRow[kReaders], one to a reader's connection
//   kJsonAt       the layout, as JSON
//   slots_at      slots of slot_bytes each: the floats of one version. Readers map them read-only.
namespace penstock::train {

inline constexpr uint32_t kSlots = 63;      // versions that are held at a time, and one more
inline constexpr uint32_t kReaders = 1024;  // processes, or rather Models

struct WeightsHeader {
  static constexpr uint64_t kMagic = 0x31746877736B746E;  // "ntkswht1"

  uint64_t magic;
  uint64_t layout_hash;
  uint64_t json_bytes;
  uint64_t slots_at;
  uint64_t slot_bytes;
  std::atomic<uint32_t> rows_used;  // rows from this one on belong to nobody
  // Which slot is current, and its version; 0 before the first. See pack() in weights_memory.cc.
  alignas(64) std::atomic<uint64_t> current;
  std::atomic<uint32_t> changes;  // goes on with every version; who waits for one sleeps on it
};

struct alignas(256) ReaderRow {
  std::atomic<uint32_t> waiting;        // threads that sleep on `changes`, or are about to
  std::atomic<uint32_t> holds[kSlots];  // reads that hold each slot
};
static_assert(sizeof(ReaderRow) == 256);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

inline constexpr uint64_t kRowsAt = 4096;
inline constexpr uint64_t kJsonAt = kRowsAt + kReaders * sizeof(ReaderRow);
static_assert(sizeof(WeightsHeader) <= kRowsAt);

}  // namespace penstock::train
