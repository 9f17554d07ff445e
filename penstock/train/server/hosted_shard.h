#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/train/layout.h"
#include "penstock/train/optimizer.h"
#include "penstock/train/server/epoch.h"
#include "penstock/train/server/replica_log.h"
#include "penstock/train/server/shard.h"
#include "penstock/train/server/shard_follower.h"
#include "penstock/train/server/shard_service.h"
#include "penstock/train/server/snapshot_folder.h"

namespace penstock::train {

struct HostedShardOptions {
  size_t shards = 1;    // of the server
  size_t shard = 0;     // this one's number
  uint64_t server = 0;  // the server's id: not 0, the same for all its shards
  ServerMode mode = {};
  std::vector<std::string> listen = {};  // addresses, of any kind
  std::string secret = {};
  std::optional<bool> encrypt = std::nullopt;  // whether TCP is encrypted; see net::LinkOptions
  // The folder of the server's snapshots, which all hosts see. Empty: no snapshots.
  std::string snapshots = {};
  // 1, or 2: two processes have the shard's state, one as leader. Two need `snapshots`.
  uint32_t replicas = 1;
  ReplicaOptions replica = {};
};

// One shard of a server whose shards are on several hosts, served by threads of this process, which
// is one in a sequence of processes with this role. It claims an epoch, gets its state by begin()
// or restore(), and then serves. Its part of a snapshot is made in steps that the writer of the
// snapshots calls at all shards: docs/training.md, section 8.
//
// With two replicas, processes in two places have this role at the same time. A new one has no
// epoch until it leads: by begin(), restore(), or attend(), which its owner calls until then.
//
// Threads: any. A forked child does not serve: there close() does nothing.
class HostedShard {
 public:
  // Errors kInvalidArgument, kOutOfMemory, kSystem; kNotFound: no such folder.
  HostedShard(Layout layout, const Optimizer& optimizer, HostedShardOptions options);
  ~HostedShard();
  HostedShard(const HostedShard&) = delete;
  HostedShard& operator=(const HostedShard&) = delete;

  // 0 without snapshots, and in a process that does not lead one of two replicas.
  uint64_t epoch() const;
  Range range() const { return range_; }

  // Serves these weights, of this shard's range. Error kInvalidArgument: another size; it serves
  // already. Errors of net::Listener.
  void begin(std::span<const float> weights, uint64_t version);
  // Serves the state of a snapshot: of the given one, or of the newest whose manifest and file are
  // as they were written. False: there is none. Errors of begin() and SnapshotFolder.
  bool restore(std::optional<SnapshotFolder::Id> id);
  // With two replicas: the id of this process, and the newest assignment of the shard.
  uint64_t id() const { return id_; }
  Assignment assignment() const;
  // What the process in the other place says.
  struct Other {
    uint64_t id = 0;
    std::string address = {};  // for this process; empty: it does not serve
  };
  enum class Attended {
    kWaits,         // nothing to do now; call again after a second
    kLeads,         // this process serves now
    kOtherFollows,  // the leader was replaced: the other process must get lose_leader()
  };
  // Follows the leader until it is lost, takes its place if this process has all that was
  // acknowledged, or continues from the newest snapshot if neither place has. `seen`: assignment(),
  // read before `other` was asked, so that of the two places no other process can have the state.
  // Errors of begin() and SnapshotFolder.
  Attended attend(const Assignment& seen, const Other& other);
  // This leader's process was replaced: attend() stops following it.
  void lose_leader(uint64_t leader);
  // Why attend() has ended, for people.
  std::string why_not() const;

  // One line for each damaged snapshot that restore() passed over for an older one.
  const std::vector<std::string>& damaged_snapshots() const { return damaged_; }

  // Where it serves, in the order of `listen`; empty: it does not.
  std::vector<std::string> addresses() const;
  // Ends the service if another process has a higher epoch for this role. True: there is one.
  bool fence();

  // The steps of a snapshot. `writer` is the epoch of the process that calls them: after a higher
  // one, a lower one is kClosed. A step that comes too late is kTimeout; the writer begins again.
  // hold(): no change begins, and none is going on, for ShardMemory::Hold::kHoldS seconds.
  void hold(uint64_t writer);
  // Copies the state as it is since hold(), then lets changes go on. Returns the shard's commits.
  uint64_t copy(uint64_t writer);
  // Writes the copy. Errors of SnapshotFolder::write().
  SnapshotFolder::Part write(uint64_t writer, uint64_t generation);
  // The snapshot with this copy is complete, or could not be written for this reason.
  void set_saved(uint64_t writer, const std::string& failure);

  // Copies the weights between two updates. Returns their version. REQUIRED: `into` has the size of
  // range(). Error kClosed: it does not serve.
  uint64_t read(std::span<float> into) const;
  uint32_t replicas() const;  // that have every acknowledged push
  bool closed() const;
  bool unsaved() const;       // whether the shard has changed since its last snapshot
  std::string stats() const;  // as Shard::stats(), with "epoch"

  void close();  // ends the service; idempotent

 private:
  void serve();  // REQUIRED: mutex_ is held
  bool restore_state(std::optional<SnapshotFolder::Id> id);
  bool lead(uint64_t epoch);
  void lead_anew();
  Attended take_over(const Assignment& before);
  Attended serve_after(const Assignment& before);
  void check_writer(uint64_t writer);

  const pid_t pid_;
  const Layout layout_;
  const Optimizer optimizer_;
  const HostedShardOptions options_;
  const Range range_;
  const uint64_t id_;
  const uint64_t epoch_;  // with one replica
  mutable std::mutex mutex_;
  std::shared_ptr<ShardMemory> memory_;
  std::shared_ptr<Shard> shard_;
  std::unique_ptr<ShardService> service_;
  std::shared_ptr<ReplicaLog> replicas_;     // once it leads
  std::shared_ptr<ShardFollower> follower_;  // during attend()
  uint64_t leader_ = 0;                      // that it follows
  std::string why_not_;
  std::vector<std::string> damaged_;
  uint64_t writer_ = 0;  // the highest that has called
  std::unique_ptr<ShardMemory::Hold> hold_;
  std::shared_ptr<const ShardCheckpoint> copy_;
  bool closed_ = false;
};

}  // namespace penstock::train
