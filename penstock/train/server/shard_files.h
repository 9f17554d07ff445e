#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/io/file.h"
#include "penstock/train/server/partition.h"
#include "penstock/train/server/shard.h"

namespace penstock::train {

// What says which shard of which weights a file is of.
struct ShardFile {
  std::string path;
  std::string optimizer;
  Range range;
  uint64_t layout_hash = 0;
};
// That of a shard in a folder of snapshots: folder/shard-0-of-2.safetensors.
ShardFile file_of(const std::string& folder, size_t shard, const std::vector<Range>& ranges,
                  const Optimizer& optimizer, const Layout& layout);

// All that a shard must not forget, in one safetensors file that appears whole or not at all:
// arrays "weights", "optimizer/0", ... of the shard's range, the rest in the metadata. The shard's
// memory knows then what is saved. Errors kSystem, kInvalidArgument.
void save(const Shard& shard, const ShardFile& file, FileSystem& files = *posix_files());
// Whether the shard has what no file has. Changes are not only updates: who joined, and left,
// counts too.
bool has_unsaved(const ShardMemory& memory);
// What a server says of last snapshots that could not be written.
Error unsaved(const std::vector<std::string>& failures);
// False: there is no such file. Error kInvalidArgument: the file of another shard, layout or
// optimizer; kDataLoss: a damaged one. REQUIRED: nobody has joined.
bool load(Shard& shard, const ShardFile& file, FileSystem& files = *posix_files());

// Saves a shard every so many seconds in which it changed, and in the end. A thread of its own,
// which waits for the disk; the shard waits only for a copy in memory.
class ShardSaver {
 public:
  ShardSaver(std::shared_ptr<Shard> shard, ShardFile file, double seconds);
  ~ShardSaver();  // end()
  ShardSaver(const ShardSaver&) = delete;
  ShardSaver& operator=(const ShardSaver&) = delete;

  // Saves once more if there is anything to save, and says why that failed: what the shard has is
  // then in no file. "": it is. Once.
  std::string end() noexcept;

 private:
  void run() noexcept;
  void save_if_changed() noexcept;

  const std::shared_ptr<Shard> shard_;
  const ShardFile file_;
  const double seconds_;
  std::string failure_;  // of the last time
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace penstock::train
