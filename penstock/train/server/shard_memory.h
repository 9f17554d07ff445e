#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "penstock/base/os.h"

namespace penstock::train {

// What became of a push. Kept with its number, so that who asks again is told the same.
enum class Outcome : uint32_t {
  kApplied = 0,
  kSkipped = 1,  // it was not finite
  kLapsed = 2,   // its worker's lease had ended: its weights were too old
};

// What is remembered of a worker.
struct LedgerRow {
  uint64_t worker = 0;    // 0: the row is free
  uint64_t sequence = 0;  // of the last push that was decided
  uint64_t clock = 0;     // pushes since it joined, and what the slowest had then
  Outcome outcome = Outcome::kApplied;
  uint32_t reserved = 0;
};

inline constexpr uint32_t kMostWorkers = 1024;

// All that a shard must not forget, but for the floats.
struct ShardRecord {
  uint64_t server = 0;   // the same for all shards of a server, also after it was started anew
  uint64_t version = 0;  // updates applied
  uint64_t step = 0;     // of the optimizer
  uint64_t skipped = 0;
  uint64_t non_finite = 0;
  LedgerRow rows[kMostWorkers];
};

// For tests: where a shard process may be made to die (die_at).
enum class DeathAt : uint32_t { kNowhere, kBeforeApply, kInApply, kBeforeCommit, kAfterCommit };

// The memory of one shard, a memfd: a header, two records, and one or two copies of weights and
// optimizer state. Which record and which copy count is in one word, `current`, by which they
// change all at once; docs/training.md, section 8, says why that is enough for a shard that may be
// killed at any time. With one copy, floats change in place.
//
// Threads: now() and weights() any; the rest is the shard's, one at a time.
class ShardMemory {
  struct Token {};

 public:
  struct Shape {
    uint64_t floats = 0;
    uint32_t states = 0;  // slabs of optimizer state: 0, 1 or 2
    uint32_t copies = 1;  // 1 or 2
  };
  struct Now {
    uint64_t version = 0;
    uint32_t record = 0;
    uint32_t copy = 0;
  };

  // Zeroes; state slabs hold `initial_state`. The memory is there when it returns.
  // Error kOutOfMemory, kSystem (descriptors).
  static std::shared_ptr<ShardMemory> make(const Shape& shape, float initial_state);
  // That of another process, or once more that of this one; takes a dup of `fd`. Error
  // kInvalidArgument if it is no such memory; kOutOfMemory (address space).
  enum class Access { kRead, kWrite };
  static std::shared_ptr<ShardMemory> open(int fd, Access access);

  ShardMemory(Token, os::Fd fd, std::byte* base, const Shape& shape);
  ~ShardMemory();
  ShardMemory(const ShardMemory&) = delete;
  ShardMemory& operator=(const ShardMemory&) = delete;

  const Shape& shape() const { return shape_; }
  int fd() const { return fd_.get(); }
  // One that can be mapped for reading only. Error kSystem.
  os::Fd read_only() const;

  // Whoever sees a version sees the floats that were written before it was set.
  Now now() const;
  std::span<float> weights(uint32_t copy) const { return floats(copy, 0); }
  std::span<float> state(uint32_t copy, uint32_t which) const { return floats(copy, 1 + which); }

  const ShardRecord& record() const { return record(now().record); }
  // change(record) makes the next record of the current one; then it and `copy` are what counts.
  template <typename Change>
  void commit(uint32_t copy, Change change) const {
    const Now before = now();
    ShardRecord& next = record(1 - before.record);
    next = record(before.record);
    change(next);
    die_if(DeathAt::kBeforeCommit);
    count_commit();  // before it: one that is cut off here is saved in vain, and none is left out
    set_current({next.version, 1 - before.record, copy});
  }
  // How many there were, of all processes.
  uint64_t commits() const;
  // What a snapshot has.
  struct Saved {
    uint64_t version = 0;
    uint64_t commits = UINT64_MAX;  // none was made
  };
  Saved saved() const;
  void set_saved(const Saved& saved) const;
  // Whether its process writes the last snapshot, which takes as long as it takes.
  bool ending() const;
  void set_ending(bool ending) const;

  // Whether as many workers as its mode wants were ready once.
  bool begun() const;
  void set_begun() const;

  // Where the shard listens, if that is a port that the system picked: the next process takes the
  // same. 0: nothing was set.
  uint32_t port() const;
  void set_port(uint32_t port) const;
  // How many processes have served it. After the first the next one goes on, whatever becomes of
  // files.
  uint32_t served() const;
  void count_served() const;

  // The process that comes to this place next is killed there, once.
  void die_at(DeathAt place) const;
  void die_if(DeathAt place) const;

 private:
  struct Header;
  Header& header() const { return *reinterpret_cast<Header*>(base_); }
  ShardRecord& record(uint32_t which) const;
  std::span<float> floats(uint32_t copy, uint32_t slab) const;
  void set_current(const Now& now) const;
  void count_commit() const;

  const os::Fd fd_;
  std::byte* const base_;
  const Shape shape_;  // not read from shared memory again
};

}  // namespace penstock::train
