#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/io/file.h"
#include "penstock/train/layout.h"
#include "penstock/train/server/shard.h"

namespace penstock::train {

// Identifies a shard's file: which shard of which weights.
struct ShardFile {
  std::string path;
  std::string optimizer;
  Range range;
  uint64_t layout_hash = 0;
};
// The file of a shard in a folder of snapshots: folder/shard-0-of-2.safetensors.
ShardFile file_of(const std::string& folder, size_t shard, const std::vector<Range>& ranges,
                  const Optimizer& optimizer, const Layout& layout);

// Writes a shard's persistent state to one safetensors file, which appears as a whole or not at
// all: arrays "weights", "optimizer/0", ... of the shard's range, the rest in the metadata. Then
// records the saved state in the shard's memory. Errors kSystem, kInvalidArgument.
void save(const Shard& shard, const ShardFile& file, FileSystem& files = *posix_files());
// Whether the shard has unsaved changes: updates, but also workers that joined or left.
bool has_unsaved(const ShardMemory& memory);
// The error for last snapshots that could not be written.
Error unsaved(const std::vector<std::string>& failures);
// Restores a shard from its file. False: no such file. Error kInvalidArgument: the file of another
// shard, layout or optimizer; kDataLoss: a damaged file. REQUIRED: no worker has joined.
bool load(Shard& shard, const ShardFile& file, FileSystem& files = *posix_files());

// Saves a shard every `seconds` seconds if it has changed, and at the end. Uses a thread, which
// waits for the disk; the shard waits only for a copy in memory.
class ShardSaver {
 public:
  ShardSaver(std::shared_ptr<Shard> shard, ShardFile file, double seconds);
  ~ShardSaver();  // end()
  ShardSaver(const ShardSaver&) = delete;
  ShardSaver& operator=(const ShardSaver&) = delete;

  // Saves a last time if needed. Returns the reason why the state is in no file; "": it is saved.
  // Call once.
  std::string end() noexcept;

 private:
  void run() noexcept;
  void save_if_changed() noexcept;

  const std::shared_ptr<Shard> shard_;
  const ShardFile file_;
  const double seconds_;
  std::string failure_;  // of the last attempt; "": none
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace penstock::train
