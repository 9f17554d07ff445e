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

#include "penstock/train/layout.h"
#include "penstock/train/optimizer.h"
#include "penstock/train/server/gradient.h"
#include "penstock/train/server/replica_log.h"
#include "penstock/train/server/shard_memory.h"
#include "penstock/train/server/shard_update.h"
#include "penstock/train/updater.h"

namespace penstock::train {

// The settings that all shards of a server share.
struct ServerMode {
  // How many pushes a worker may be ahead of the slowest. 0: synchronous. Empty: asynchronous, no
  // worker waits.
  std::optional<uint32_t> staleness = {};
  double lease_s = 30;      // seconds that others wait for a silent worker
  uint32_t workers = 0;     // nothing is applied until this many workers are ready
  double compensation = 0;  // lambda of DC-ASGD; 0: none
  NonFinite non_finite = NonFinite::kRaise;
};
// Error kInvalidArgument: invalid numbers, compensation in synchronous mode.
void check(const ServerMode& mode);

// One shard: a range of the weights with its optimizer state, its workers, and a ledger of applied
// pushes. Knows no transport. Its persistent state is in the ShardMemory: another Shard over the
// same memory continues where this one was killed. docs/training.md, section 8, has the states of
// workers and the reason why every push counts once.
//
// Threads: any. push() blocks while the mode requires it.
class Shard {
 public:
  struct Push {
    uint64_t worker = 0;
    uint64_t sequence = 0;  // from 1, ascending
    Gradient gradient;
    // Sum of squares over all shards; decides on clipping and on non-finite gradients.
    double squares = 0;
    uint64_t base = 0;  // version of the weights from which the gradient was computed
    std::span<const float> base_weights;  // these weights, for delay compensation; else empty
    // The gradient or the base weights lie in memory of the worker, which writes there again when
    // it has given up the push.
    bool in_place = false;
    uint64_t bytes = 0;  // bytes received, for statistics
    // The worker's pulls since its last push that this shard did not see: their number, and the
    // time of the last, by now_ns(); 0: none.
    uint64_t pulls = 0;
    uint64_t pulled_ns = 0;
    uint64_t hello = 0;                       // from the join() of the client that pushes; 0: any
    std::function<bool()> is_connected = {};  // whether the worker is still connected; empty: it is
  };
  struct Answer {
    Outcome outcome = Outcome::kApplied;
    uint64_t version = 0;  // version that includes the push
  };
  struct Worker {
    uint64_t id = 0;        // not 0
    std::string name = {};  // synchronous mode averages in the order of names
    std::string address = {};
    bool chosen = false;  // the caller chose the id, and may give it to a later client
    // What the worker knows when it connects again; 0 in a new client.
    uint64_t decided = 0;      // number of its last push that this shard has answered
    uint64_t in_doubt = 0;     // number of the push whose answer did not arrive; 0: none
    uint64_t evictions = 0;    // as in the last JoinResult
    uint32_t incarnation = 0;  // as in the last JoinResult
  };

  // REQUIRED: no other Shard works on this memory.
  Shard(std::shared_ptr<ShardMemory> memory, Optimizer optimizer, const ServerMode& mode);

  // From now on all changes go to the follower, and push() and join() return when it has them; see
  // ReplicaLog. REQUIRED: no worker has joined.
  void replicate_to(std::shared_ptr<ReplicaLog> replicas);

  const std::shared_ptr<ShardMemory>& memory() const { return memory_; }

  // The result of join(): the worker's row with its last decided push.
  struct JoinResult : LedgerRow {
    uint64_t hello = 0;   // number of this call of join()
    bool is_new = false;  // the worker was unknown before
    uint64_t evictions = 0;
  };
  // A worker connects or reconnects. A held push of the worker is dropped (kClosed): its answer is
  // no longer awaited, and its memory may soon hold the next gradient. Errors kOutOfMemory:
  // kMaxWorkers have joined; kInvalidArgument: a newer client has the worker's id, or the row was
  // given to another worker while a push was in doubt.
  JoinResult join(const Worker& worker);
  // The worker has connected to all shards. Counts towards ServerMode::workers, also if the worker
  // leaves later. A worker that only joined may still give up because of another shard.
  void ready(uint64_t worker);
  // The worker's connection has ended without bye: it is not ready until it says so again. `hello`:
  // from join().
  void on_disconnect(uint64_t worker, uint64_t hello);
  // The worker hung up before it could join: only drops its held push.
  void cancel_push(uint64_t worker);
  // The worker hung up right after join(): undoes that join. Does nothing if the worker has joined
  // again.
  void undo_join(uint64_t worker, uint64_t hello);
  // The worker leaves: no other worker waits for it, and its row is erased, unless the id was
  // chosen by the caller. `hello`: from the join() of the client that leaves; 0: any.
  void leave(uint64_t worker, uint64_t hello = 0);
  // The worker pulled `bytes` bytes, which renews its lease.
  void pulled(uint64_t worker, uint64_t bytes);

  // The worker is alive, for example in a long step: renews its lease, unless that had expired.
  void alive(uint64_t worker);

  // Applies one push; its spans must stay valid until the return. A repeated push gets the same
  // answer and is not applied again. Errors: kNotFound (the worker did not join), kInvalidArgument
  // (see NonFinite; sizes), kClosed.
  Answer push(const Push& push);

  // Copies the weights between two updates. Returns their version. REQUIRED: `into` has the shard's
  // size.
  uint64_t read(std::span<float> into) const;

  // Copies the state between two changes, and calls `at` then.
  std::unique_ptr<ShardCheckpoint> copy(const std::function<void()>& at) const;

  // Ends all waits; later pushes throw kClosed.
  void close();

  // Statistics as JSON, for people. Counts start with this object, except those of the record,
  // which persist. "staleness"[i] counts pushes that came 2^(i-1) to 2^i - 1 versions after the
  // weights from which they were computed ([0]: none).
  std::string stats() const;
  void restore(const ShardCheckpoint& checkpoint);  // REQUIRED: no worker has joined

 private:
  // A worker that has joined this object, or an earlier one according to the record.
  struct Member {
    std::string name;
    std::string address;
    uint64_t lease_end = 0;  // now_ns()
    uint32_t inside = 0;     // running calls of push()
    uint64_t hello = 0;      // number of its last hello; a later one drops held pushes
    uint64_t joined = 0;     // number of the hello of its last join()
    bool gone = false;       // it left during a push()
    bool lapsed = false;
    bool here = false;   // it has joined this object
    bool ready = false;  // and has connected to all shards
    const Push* held = nullptr;
    uint64_t pushes = 0;
  };
  using Members = std::map<uint64_t, Member>;
  class PushScope;  // counts a running call of push()
  class ReplicaScope;

  LedgerRow row_of(uint64_t worker) const;
  uint32_t index_of(uint64_t worker);  // of its row; a new row if needed
  template <typename Edit>
  void change_record(Edit edit);
  template <typename Edit>
  void replicate(Edit edit, std::span<const Push* const> pushes);
  JoinResult join_here(const Worker& worker);
  void wait_for_follower(std::unique_lock<std::mutex>& lock);
  void record_decision(uint64_t worker, Outcome outcome);
  void renew(Member& member);
  void rejoin(uint64_t worker, Member& member);
  bool has_lease(const Member& member) const;
  void expire_leases();
  void drop_held_push(Member& member);
  void remove(Members::iterator member);
  void erase_member(Members::iterator member);
  uint64_t slowest_clock() const;
  bool all_pushes_held() const;
  bool may_apply(uint64_t worker) const;
  void wait(std::unique_lock<std::mutex>& lock);
  std::optional<Outcome> decide_without_update(const Push& push);
  void apply_round();
  void apply(std::span<const Push* const> pushes);

  const std::shared_ptr<ShardMemory> memory_;
  const Optimizer optimizer_;
  const ServerMode mode_;
  const uint64_t lease_ns_;
  ShardUpdate update_;
  std::shared_ptr<ReplicaLog> replicas_;  // null: the shard has no follower

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  bool started_ = false;  // mode.workers were ready once
  Members members_;
  uint64_t hellos_ = 0;
  std::map<uint64_t, uint32_t> rows_;  // index in the record, by worker

  // Statistics since this object was made.
  static constexpr size_t kBins = 16;  // staleness 0, 1, 2-3, 4-7, ...
  std::array<uint64_t, kBins> staleness_{};
  uint64_t pushes_ = 0, repeated_ = 0, lapsed_ = 0, pulls_ = 0, bytes_in_ = 0, bytes_out_ = 0;
  uint64_t began_ns_ = 0;
};

}  // namespace penstock::train
