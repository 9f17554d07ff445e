#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/base/os.h"

namespace penstock::train {

// The outcome of a push. Stored with its number, so that a repeated push gets the same answer.
enum class Outcome : uint32_t {
  kApplied = 0,
  kSkipped = 1,  // not finite
  kLapsed = 2,   // the worker's lease had expired: its weights were too old
};

// A worker's row in the ledger of pushes.
struct LedgerRow {
  uint64_t worker = 0;    // 0: the row is free
  uint64_t sequence = 0;  // number of the last decided push
  uint64_t clock = 0;     // pushes since it joined, plus the slowest worker's clock at that time
  Outcome outcome = Outcome::kApplied;
  uint32_t incarnation : 30 = 0;  // number of the client object that has this worker's id
  uint32_t chosen : 1 = 0;        // the id is the caller's choice: the row outlives its clients
  uint32_t departed : 1 = 0;      // no client has the id now, and no round waits for one

  bool operator==(const LedgerRow&) const = default;
};
static_assert(sizeof(LedgerRow) == 32);  // every commit copies all rows

inline constexpr uint32_t kMaxWorkers = 1024;

// The persistent state of a shard, except the floats.
struct ShardRecord {
  uint64_t server = 0;   // the server's id: the same for all shards, kept over restarts
  uint64_t version = 0;  // applied updates
  uint64_t step = 0;     // of the optimizer
  uint64_t skipped = 0;
  uint64_t non_finite = 0;
  uint64_t evictions = 0;  // rows of silent workers that were given to new ones
  LedgerRow rows[kMaxWorkers];
};

// For tests: places where a shard process can be killed (crash_at).
enum class CrashPoint : uint32_t { kNowhere, kBeforeApply, kInApply, kBeforeCommit, kAfterCommit };

// A copy of a shard's persistent state.
struct ShardCheckpoint {
  ShardRecord record;
  uint64_t commits = 0;  // the memory's commits at that time
  std::vector<float> weights;
  std::vector<std::vector<float>> states;
};

// The memory of one shard, a memfd: a header, two records, and one or two copies of weights and
// optimizer state. The word `current` selects the record and the copy that count, so both change
// atomically; docs/training.md, section 8, explains why a shard can be killed at any time. With one
// copy, floats change in place.
//
// Threads: current(), weights(), saved() and saving_failed() any; Hold and set_saved() one other
// thread or process at a time; the other members belong to the shard, one thread at a time.
class ShardMemory {
  struct Token {};

 public:
  struct Shape {
    uint64_t floats = 0;
    uint32_t states = 0;  // slabs of optimizer state: 0, 1 or 2
    uint32_t copies = 1;  // 1 or 2
  };
  struct Current {
    uint64_t version = 0;
    uint32_t record = 0;
    uint32_t copy = 0;
  };

  // Weights are zero; state slabs hold `initial_state`. The pages are allocated on return. Error
  // kOutOfMemory, kSystem (descriptors).
  static std::shared_ptr<ShardMemory> make(const Shape& shape, float initial_state);
  // Maps the memory of another process, or this one's again; duplicates `fd`. Error
  // kInvalidArgument: not the memory of a shard; kOutOfMemory (address space).
  enum class Access { kRead, kWrite };
  static std::shared_ptr<ShardMemory> open(int fd, Access access);

  ShardMemory(Token, os::Fd fd, std::byte* base, const Shape& shape);
  ~ShardMemory();
  ShardMemory(const ShardMemory&) = delete;
  ShardMemory& operator=(const ShardMemory&) = delete;

  const Shape& shape() const { return shape_; }
  int fd() const { return fd_.get(); }
  // A descriptor that can only be mapped for reading. Error kSystem.
  os::Fd read_only() const;

  // A thread that reads a version sees the floats written before it was set.
  Current current() const;
  std::span<float> weights(uint32_t copy) const { return floats(copy, 0); }
  std::span<float> state(uint32_t copy, uint32_t which) const { return floats(copy, 1 + which); }

  const ShardRecord& record() const { return record(current().record); }

  // A change of the memory by its shard, from its first write to its commit. Waits while a snapshot
  // holds the memory. One at a time.
  class Change {
   public:
    explicit Change(const ShardMemory& memory);
    ~Change();
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

    // Makes the next record with edit(copy of the current record); then makes it and `copy`
    // current.
    template <typename Edit>
    void commit(uint32_t copy, Edit edit) const {
      const Current before = memory_.current();
      ShardRecord& next = memory_.record(1 - before.record);
      next = memory_.record(before.record);
      edit(next);
      memory_.crash_if(CrashPoint::kBeforeCommit);
      // Counted first: an interrupted commit is saved needlessly, and none is missed.
      memory_.count_commit();
      memory_.set_current({next.version, 1 - before.record, copy});
    }

   private:
    const ShardMemory& memory_;
  };
  // A killed shard's change has ended. REQUIRED: no other object changes the memory.
  void abandon_change() const;

  // Keeps the shard, in whatever process, from beginning a Change, for kHoldS seconds unless
  // renewed: a process that is stopped meanwhile stops no shard.
  class Hold {
   public:
    static constexpr double kHoldS = 2;

    explicit Hold(const ShardMemory& memory);
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

    // Waits for the end of a Change that had begun. False: it is still going on at `deadline`.
    bool wait(const Deadline& deadline) const;
    // False: the hold had expired, and the memory may have changed.
    bool renew();

   private:
    const ShardMemory& memory_;
    uint64_t until_ns_ = 0;
  };
  // Copies the current state, and calls `progress` after each piece. REQUIRED: a Hold, or no shard
  // works on this memory.
  std::unique_ptr<ShardCheckpoint> checkpoint(const std::function<void()>& progress = {}) const;

  // Makes a copy the current state. REQUIRED: the shapes are equal; no shard works on this memory.
  void load(const ShardCheckpoint& checkpoint) const;

  // Number of commits, of all processes.
  uint64_t commits() const;
  // The state of the last snapshot.
  struct Saved {
    uint64_t version = 0;
    uint64_t commits = UINT64_MAX;  // no snapshot yet
  };
  Saved saved() const;
  void set_saved(const Saved& saved) const;
  // The reason why the last snapshot could not be written; "": it was, or there was none. At most
  // kMaxReasonBytes, the rest is cut off. One thread at a time sets it.
  static constexpr size_t kMaxReasonBytes = 512;
  std::string saving_failed() const;
  void set_saving_failed(const std::string& why) const;

  // Whether the mode's number of workers was reached once.
  bool begun() const;
  void set_begun() const;

  // The port that the system picked for the shard; a restarted process takes the same. 0: not set.
  uint32_t port() const;
  void set_port(uint32_t port) const;
  // The number of processes that have served this shard. After the first process, a failure to save
  // does not end the shard.
  uint32_t served() const;
  void count_served() const;

  // The next process that reaches this place is killed there, once.
  void crash_at(CrashPoint place) const;
  void crash_if(CrashPoint place) const;

 private:
  struct Header;
  Header& header() const { return *reinterpret_cast<Header*>(base_); }
  ShardRecord& record(uint32_t which) const;
  std::span<float> floats(uint32_t copy, uint32_t slab) const;
  void set_current(const Current& current) const;
  void count_commit() const;

  const os::Fd fd_;
  std::byte* const base_;
  const Shape shape_;  // copied once: shared memory may change
};

}  // namespace penstock::train
