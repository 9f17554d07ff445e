#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "penstock/train/server/parameter_server.h"

namespace penstock::train {

// A parameter server whose shards are processes: the end that owns the shards' memory. Another
// process, with a single thread, gets the descriptors and text(), and starts the shards with
// supervise_shards(). docs/training.md, section 8. Threads: any.
class ShardProcesses {
 public:
  // As ParameterServer's; `copies` is 2.
  ShardProcesses(const Parameters& parameters, const Optimizer& optimizer,
                 const ServerOptions& options);

  const Layout& layout() const { return layout_; }
  std::vector<int> descriptors() const;  // the memory of each shard
  // The supervisor's configuration, one line of JSON, with the addresses to listen at.
  std::string text(const std::vector<std::string>& addresses) const;
  const std::vector<std::string>& listen() const { return listen_; }

  // As ParameterServer::read(). Each shard's weights have one version, unless updates are faster
  // than the copy: then parts may be newer, as in a client's pull.
  std::vector<uint64_t> read(const Slab& into) const;
  // The lock of the folder for snapshots, for supervise_shards(); -1: no snapshots. Valid until
  // end_saving().
  int lock() const { return lock_; }
  // One line for each damaged snapshot that was passed over for an older one.
  const std::vector<std::string>& damaged_snapshots() const { return damaged_snapshots_; }
  // Saves a snapshot, and from now on others at intervals. Does nothing without a folder. Error
  // kSystem: the snapshot could not be written. REQUIRED: all shards serve; call once.
  void start_saving();
  std::string saving_failed() const;  // as of ParameterServer
  // Saves a last time, and unlocks the folder. Idempotent. Error kSystem: that snapshot could not
  // be written; its state exists only in this object. REQUIRED: the processes have ended.
  void end_saving();
  // For tests: kills the shard's process when it reaches this place.
  void crash_at(size_t shard, CrashPoint place) const;

 private:
  const Layout layout_;
  const Optimizer optimizer_;
  const ServerOptions options_;
  std::vector<Range> ranges_;
  std::vector<std::string> listen_;
  std::vector<std::shared_ptr<ShardMemory>> memories_;
  std::vector<std::string> damaged_snapshots_;
  std::mutex saving_;
  std::unique_ptr<SnapshotFolder> snapshots_;  // until start_saving()
  std::unique_ptr<SnapshotSaver> saver_;
  std::atomic<int> lock_{-1};
  uint64_t epoch_ = 0;
};

// Runs the shards of text(), one process each, and restarts those that end. Returns, after all
// shards have ended, when the other end of `control` is closed or shut down. Sends lines over
// `control`:
//   <shard> <process> <address>              for each start of a shard
//   <shard> 0 <reason>                       it cannot be started; it will be tried again
// If the owner was killed, saves the last changes of the shards. The folder stays locked until then
// by `lock`, from ShardProcesses::lock().
// REQUIRED: this process is a child of the owner, and has no other threads that a forked child
// would need. Error kSystem: the last snapshot could not be written.
void supervise_shards(const std::string& text, const std::vector<int>& descriptors, int control,
                      int lock);

}  // namespace penstock::train
