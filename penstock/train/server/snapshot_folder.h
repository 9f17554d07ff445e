#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/io/file.h"
#include "penstock/io/folder_lock.h"
#include "penstock/train/layout.h"
#include "penstock/train/optimizer.h"
#include "penstock/train/safetensors.h"
#include "penstock/train/server/shard_memory.h"

namespace penstock::train {

// The snapshots of one server in a folder. A snapshot is a generation: a file for each shard,
// shard-0-of-2.17.safetensors (arrays "weights", "optimizer/0", ... of the shard's range, the rest
// in the metadata), and a manifest, snapshot.17.json, with the size and CRC-32C of each. The
// manifest is written last; files without one are what an interrupted save left. The last kKept
// generations stay. The folder is locked as long as this object lives. One thread.
class SnapshotFolder {
 public:
  static constexpr size_t kKept = 3;

  // Errors kInvalidArgument: another server uses the folder; kNotFound; kSystem.
  SnapshotFolder(std::string folder, std::vector<Range> ranges, const Optimizer& optimizer,
                 const Layout& layout, std::shared_ptr<FileSystem> files = posix_files());

  // The same under a lock that exists already.
  SnapshotFolder(std::string folder, std::vector<Range> ranges, const Optimizer& optimizer,
                 const Layout& layout, std::unique_ptr<FolderLock> lock,
                 std::shared_ptr<FileSystem> files = posix_files());

  const FolderLock& lock() const { return *lock_; }

  // Finds the newest snapshot all of whose files are as they were written. False: there is none,
  // and never was. Errors kInvalidArgument: a snapshot of a server with another number of shards;
  // kDataLoss: every snapshot is damaged (the text names a file); kSystem.
  bool find();
  // One line for each newer snapshot that find() passed over, with the damaged file.
  const std::vector<std::string>& damaged() const { return damaged_; }
  // Reads a shard's state from the snapshot that find() found. Errors kInvalidArgument: another
  // layout or optimizer; kDataLoss; kSystem.
  ShardCheckpoint load(size_t shard) const;

  // Writes the next generation, then removes the oldest ones. After an error the folder has the
  // generations that it had. Errors kSystem, kNotFound (no folder any more), kInvalidArgument.
  void save(std::span<const std::unique_ptr<ShardCheckpoint>> shards);

 private:
  std::string shard_path(size_t shard, uint64_t generation) const;
  std::string manifest_path(uint64_t generation) const;
  std::vector<uint64_t> generations() const;
  void check(uint64_t generation) const;
  void remove_old() const;

  const std::string folder_;
  const std::vector<Range> ranges_;
  const std::string optimizer_;
  const uint64_t layout_hash_;
  const uint32_t states_;
  const std::shared_ptr<FileSystem> files_;
  const std::unique_ptr<FolderLock> lock_;
  std::vector<std::string> damaged_;
  std::vector<uint64_t> good_;  // ascending; those before the one that was found are not checked
};

}  // namespace penstock::train
