#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "penstock/train/server/parameter_server.h"

namespace penstock::train {

// A parameter server whose shards are processes: the end that holds their memory. The processes are
// started by supervise_shards(), in a process with one thread that somebody else starts, gives the
// descriptors to, and tells text(). docs/training.md, section 8. Threads: any.
class ShardProcesses {
 public:
  // As ParameterServer's; `copies` is 2.
  ShardProcesses(const Parameters& parameters, const Optimizer& optimizer,
                 const ServerOptions& options);

  const Layout& layout() const { return layout_; }
  std::vector<int> descriptors() const;  // a shard's memory each
  // All that a supervisor has to know, in one line of JSON; shards are to listen here.
  std::string text(const std::vector<std::string>& addresses) const;
  const std::vector<std::string>& listen() const { return listen_; }

  // See ParameterServer::read(). Each shard's weights are of one version, unless updates come
  // faster than a copy is made: then they may have parts of later ones, as a client's pull.
  std::vector<uint64_t> read(const Slab& into) const;
  // Writes the last snapshots of shards that could not, or were killed before they did. Any number
  // of times. Error kSystem: a file could not be written; what it would have had is here only.
  // REQUIRED: the processes have ended.
  void save_rest() const;
  // For tests: the shard's process is killed when it comes to this place.
  void die_at(size_t shard, DeathAt place) const;

 private:
  const Layout layout_;
  const Optimizer optimizer_;
  const ServerOptions options_;
  std::vector<Range> ranges_;
  std::vector<std::string> listen_;
  std::vector<std::shared_ptr<ShardMemory>> memories_;
  mutable std::mutex saving_;
};

// Runs the shards of text(), a process each, and starts anew those that end, for as long as it
// takes. Returns when the other end of `control` is gone or says no more, and all shards with it.
// Tells `control`, a line each:
//   <shard> <process> <address>              for each start of a shard
//   <shard> 0 <why it cannot be started>     another try is made soon
// REQUIRED: this process has no other threads that matter to a forked child of it.
void supervise_shards(const std::string& text, const std::vector<int>& descriptors, int control);

}  // namespace penstock::train
