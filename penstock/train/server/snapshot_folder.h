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
// shard-0-of-2.5.17.safetensors (arrays "weights", "optimizer/0", ... of the shard's range, the
// rest in the metadata), and a manifest, snapshot.5.17.json, with the size and CRC-32C of each. 5
// is the epoch of the process that wrote the manifest (see claim_epoch()), 17 the generation. The
// manifest is written last; files without one are what an interrupted save left. The last kKept
// generations stay. The folder is locked as long as this object lives, unless the shards are on
// several hosts. One thread.
class SnapshotFolder {
 public:
  static constexpr size_t kKept = 3;

  // Generations are ordered by epoch first: what an earlier writer adds late is older.
  struct Id {
    uint64_t epoch = 0;
    uint64_t generation = 0;
    auto operator<=>(const Id&) const = default;
  };

  // Locks the folder and claims an epoch. Errors kInvalidArgument: another server uses the folder;
  // kNotFound; kSystem.
  SnapshotFolder(std::string folder, std::vector<Range> ranges, const Optimizer& optimizer,
                 const Layout& layout, std::shared_ptr<FileSystem> files = posix_files());

  // The same under a lock that exists already, for a process with this epoch. No lock: the shards
  // are on several hosts, and the epoch alone decides which process may write manifests.
  SnapshotFolder(std::string folder, std::vector<Range> ranges, const Optimizer& optimizer,
                 const Layout& layout, std::unique_ptr<FolderLock> lock, uint64_t epoch,
                 std::shared_ptr<FileSystem> files = posix_files());

  const FolderLock& lock() const { return *lock_; }  // REQUIRED: there is one
  uint64_t epoch() const { return epoch_; }

  // Finds the newest snapshot all of whose files are as they were written, or only the manifest and
  // this shard's file. False: there is none, and never was. Errors kInvalidArgument: a snapshot of
  // a server with another number of shards; kDataLoss: every snapshot is damaged (the text names a
  // file); kSystem.
  bool find(std::optional<size_t> shard = {});
  // The snapshot that find() found. REQUIRED: it found one.
  Id found() const { return good_.back(); }
  // Takes this snapshot as found, instead of find().
  void choose(const Id& id) { good_ = {id}; }
  // One line for each newer snapshot that find() passed over, with the damaged file.
  const std::vector<std::string>& damaged() const { return damaged_; }
  // Reads a shard's state from the snapshot that was found. Errors kInvalidArgument: another layout
  // or optimizer; kDataLoss; kSystem.
  ShardCheckpoint load(size_t shard) const;

  // Writes the next generation, then removes the oldest ones. After an error the folder has the
  // generations that it had. Errors as those of write() and commit().
  void save(std::span<const std::unique_ptr<ShardCheckpoint>> shards);

  // The steps of save(), for shards on several hosts: each writes its file, then the process with
  // the epoch writes the manifest.
  struct Part {
    FileDigest file;
    uint64_t version = 0;
    uint64_t epoch = 0;  // the shard's own, of claim_epoch(); 0: it has none
  };
  Id next() const;
  // Errors kSystem, kNotFound (no folder any more).
  Part write(size_t shard, const Id& id, const ShardCheckpoint& state) const;
  // Errors kSystem, kNotFound; kClosed: another process has claimed a higher epoch, as the writer
  // or as one of the shards.
  void commit(const Id& id, std::span<const Part> parts);

 private:
  std::string shard_path(size_t shard, const Id& id) const;
  std::string manifest_path(const Id& id) const;
  std::vector<Id> generations() const;
  void check(const Id& id, std::optional<size_t> shard) const;
  void remove_old() const;

  const std::string folder_;
  const std::vector<Range> ranges_;
  const std::string optimizer_;
  const uint64_t layout_hash_;
  const uint32_t states_;
  const std::shared_ptr<FileSystem> files_;
  const std::unique_ptr<FolderLock> lock_;
  const uint64_t epoch_;
  std::vector<std::string> damaged_;
  std::vector<Id> good_;  // ascending; those before the one that was found are not checked
};

}  // namespace penstock::train
