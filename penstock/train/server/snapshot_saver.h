#pragma once

#include <sys/types.h>

#include <memory>
#include <vector>

#include "penstock/train/server/shard_memory.h"
#include "penstock/train/server/snapshot_folder.h"

namespace penstock::train {

// Copies the state of all shards as it is at one moment: all are held, then copied one after the
// other, and each is released once it is copied. The shards may work in any process. Errors
// kTimeout: a shard was in the middle of a change all the time; kOutOfMemory.
std::vector<std::unique_ptr<ShardCheckpoint>> copy_at_one_moment(
    const std::vector<std::shared_ptr<ShardMemory>>& memories);

// Saves the shards' state if it has changes that no snapshot has. REQUIRED: no shard works on the
// memories. Errors as SnapshotFolder::save().
void save_unsaved(const std::vector<std::shared_ptr<ShardMemory>>& memories,
                  SnapshotFolder& folder);

// Saves snapshots of a server: one at once, then one every `seconds` seconds if anything has
// changed, and one at the end. Uses a thread, which waits for the disk; shards wait only for copies
// in memory. Failures are recorded in the shards' memories, for stats(). Threads: any. A forked
// child saves nothing.
class SnapshotSaver {
 public:
  // Error kSystem: the first snapshot could not be written.
  SnapshotSaver(std::vector<std::shared_ptr<ShardMemory>> memories,
                std::unique_ptr<SnapshotFolder> snapshots, double seconds);
  ~SnapshotSaver();  // end(), without its error
  SnapshotSaver(const SnapshotSaver&) = delete;
  SnapshotSaver& operator=(const SnapshotSaver&) = delete;

  // Saves a last time if anything has changed, and unlocks the folder. Idempotent. Error kSystem:
  // that snapshot could not be written. REQUIRED: no shard works on the memories any more.
  void end();

 private:
  struct State;

  const pid_t pid_;
  std::unique_ptr<State> state_;
};

}  // namespace penstock::train
