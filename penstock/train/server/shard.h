#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/train/optimizer.h"
#include "penstock/train/server/gradient.h"
#include "penstock/train/server/partition.h"
#include "penstock/train/server/shard_memory.h"
#include "penstock/train/updater.h"

namespace penstock::train {

// What all shards of a server agree on.
struct ServerMode {
  // How far a worker may run ahead of the slowest, in pushes. 0: synchronous. Nothing:
  // asynchronous, nobody waits.
  std::optional<uint32_t> staleness = {};
  double lease_s = 30;      // how long others wait for a worker that says nothing
  uint32_t workers = 0;     // nothing is applied until so many are ready
  double compensation = 0;  // lambda of DC-ASGD; 0: none
  NonFinite non_finite = NonFinite::kRaise;
};
// Error kInvalidArgument: numbers that cannot be, compensation in synchronous mode.
void check(const ServerMode& mode);

// One shard: a range of the weights with its optimizer state, who works on it, and which pushes
// were applied. Knows no transport. What must not be forgotten is in its memory, so that another
// Shard over the same memory goes on where this one was killed. docs/training.md, section 8, has
// the states of workers and why every push counts once.
//
// Threads: any. push() blocks while the mode says so.
class Shard {
 public:
  struct Push {
    uint64_t worker = 0;
    uint64_t sequence = 0;  // from 1, ascending
    Gradient gradient;
    double squares = 0;  // the sum over all shards; decides on clipping and what is not finite
    uint64_t base = 0;   // the version of the weights that it was computed from
    std::span<const float> base_weights;  // those; where there is compensation, else empty
    uint64_t bytes = 0;                   // as it travelled, for statistics
    // Of the worker since its last push, that this shard saw nothing of: how many, and when it last
    // did, by now_ns(); 0: never.
    uint64_t pulls = 0;
    uint64_t pulled_ns = 0;
    std::function<bool()> awaited = {};  // whether its worker is still there; none: it is
  };
  struct Answer {
    Outcome outcome = Outcome::kApplied;
    uint64_t version = 0;  // that has it
  };
  struct Worker {
    uint64_t id = 0;   // not 0
    std::string name;  // workers are averaged in the order of their names
    std::string address;
  };

  // REQUIRED: nobody else works on this memory.
  Shard(std::shared_ptr<ShardMemory> memory, Optimizer optimizer, const ServerMode& mode);

  const std::shared_ptr<ShardMemory>& memory() const { return memory_; }

  // What is known of a worker: the last push that was decided.
  struct Known : LedgerRow {
    uint64_t hello = 0;  // this one's number
    bool anew = false;   // it made it a worker
  };
  // A worker comes, or comes back. One that is held for it is given up, kClosed: nobody waits for
  // its answer any more, and where it lies there may soon be the next.
  // Error kOutOfMemory: kMostWorkers are here.
  Known join(const Worker& worker);
  // It has connected to all shards, and is one of those that the mode begins with; who leaves later
  // takes nothing back. Who has only joined may yet give up, because of another shard.
  void ready(uint64_t worker);
  // Its connection has ended without a goodbye: it is one of them again when it says so again.
  void hung_up(uint64_t worker, uint64_t hello);
  // It has come, and was gone again before it could join: that much is left to do.
  void give_up(uint64_t worker);
  // It was gone before it did anything: as if that hello had not been. Nothing if there was
  // another.
  void take_back(uint64_t worker, uint64_t hello);
  // It will not be back: nobody waits for it, what is known of it is forgotten.
  void leave(uint64_t worker);
  // It gave a sign of life (a pull of so many bytes).
  void pulled(uint64_t worker, uint64_t bytes);

  // One push. The spans must stay until it returns. Sent again, it is answered again, and not
  // applied. Errors: kNotFound (who did not join), kInvalidArgument (see NonFinite; sizes),
  // kClosed.
  Answer push(const Push& push);

  // The weights between two updates. Returns their version. REQUIRED: as many floats.
  uint64_t read(std::span<float> into) const;

  // Ends waits; later pushes are kClosed.
  void close();

  // For people: see stats.cc.
  std::string stats() const;
  // Weights, state and record of one moment, copied: for snapshots.
  struct Moment {
    ShardRecord record;
    uint64_t commits = 0;  // of its memory: whether anything came after it
    std::vector<float> weights;
    std::vector<std::vector<float>> states;
  };
  std::unique_ptr<Moment> moment() const;
  void restore(const Moment& moment);  // before anybody joins
  // Why the last snapshot could not be written; "": it was. For stats().
  void saving_failed(const std::string& why);

 private:
  // A worker that joined, or that the record says had joined when the last process died.
  struct Member {
    std::string name;
    std::string address;
    uint64_t lease_end = 0;  // now_ns()
    uint32_t inside = 0;     // calls of push()
    uint64_t hello = 0;      // a push is given up when the next one comes
    uint64_t joined = 0;     // the last one that it joined with
    bool gone = false;       // it left while inside
    bool lapsed = false;
    bool here = false;   // it said hello to this object
    bool ready = false;  // and has connected to all shards
    const Push* held = nullptr;
    uint64_t pushes = 0;
  };
  using Members = std::map<uint64_t, Member>;
  class Inside;  // counts a call of push()

  LedgerRow row_of(uint64_t worker) const;
  uint32_t index_of(uint64_t worker);  // of its row, a new one if need be
  void decide(uint64_t worker, Outcome outcome);
  void renew(Member& member);
  void be_back(uint64_t worker, Member& member);
  bool lives(const Member& member) const;
  void end_leases();
  void give_up_held(Member& member);
  void let_go(Members::iterator member);
  void forget(Members::iterator member);
  uint64_t slowest() const;
  bool complete() const;
  bool may_go(uint64_t worker) const;
  void wait(std::unique_lock<std::mutex>& lock);
  std::optional<Outcome> look(const Push& push);
  void apply_round();
  // shard_apply.cc
  struct Part {
    const Push* push;
    float scale;
  };
  void apply(std::span<const Part> parts);
  void run(const kernels::Pass& pass, std::span<const Part> parts, std::span<const Range> touched,
           uint32_t from, uint32_t to);
  void catch_up(uint32_t from, uint32_t to);

  const std::shared_ptr<ShardMemory> memory_;
  const Optimizer optimizer_;
  const ServerMode mode_;
  const uint64_t lease_ns_;
  const float compensation_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  bool started_ = false;  // mode.workers were ready
  Members members_;
  uint64_t hellos_ = 0;
  std::map<uint64_t, uint32_t> rows_;  // of the record
  std::vector<float> scratch_;
  // Where the copy that is not current may differ from the one that is: what the last update
  // touched; all of it, unless this object made that update.
  std::vector<Range> behind_;

  // Statistics of this object's life.
  static constexpr size_t kBins = 16;  // staleness 0, 1, 2-3, 4-7, ...
  std::array<uint64_t, kBins> staleness_{};
  uint64_t pushes_ = 0, repeated_ = 0, lapsed_ = 0, pulls_ = 0, bytes_in_ = 0, bytes_out_ = 0;
  uint64_t began_ns_ = 0;
  std::string saving_failed_;
};

}  // namespace penstock::train
