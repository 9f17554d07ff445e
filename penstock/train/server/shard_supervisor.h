#pragma once

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
  // Writes the last snapshots of shards that failed to, or were killed before. Idempotent. Error
  // kSystem: a file could not be written; that state exists only in this object. REQUIRED: the
  // processes have ended.
  void save_unsaved() const;
  // For tests: kills the shard's process when it reaches this place.
  void crash_at(size_t shard, CrashPoint place) const;

 private:
  const Layout layout_;
  const Optimizer optimizer_;
  const ServerOptions options_;
  std::vector<Range> ranges_;
  std::vector<std::string> listen_;
  std::vector<std::shared_ptr<ShardMemory>> memories_;
  mutable std::mutex saving_;
};

// Runs the shards of text(), one process each, and restarts those that end. Returns, after all
// shards have ended, when the other end of `control` is closed or shut down. Sends lines over
// `control`:
//   <shard> <process> <address>              for each start of a shard
//   <shard> 0 <reason>                       it cannot be started; it will be tried again
// REQUIRED: this process has no other threads that a forked child would need.
void supervise_shards(const std::string& text, const std::vector<int>& descriptors, int control);

}  // namespace penstock::train
