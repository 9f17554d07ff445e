#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/io/file_pool.h"
#include "penstock/pipeline/node.h"

namespace penstock {

// What a plan's nodes share while they are built. One build, one thread.
class Builder {
 public:
  explicit Builder(std::shared_ptr<FileSystem> files = posix_files()) : files_(std::move(files)) {}

  // Builds `node` and what is below it, from the source upward.
  Built build(const Node& node);

  // What was built as a stream, for stages that can go through their input in order only.
  StreamedRef as_stream(const Built& built);

  // The next random operation's number (RandomKey::operation). They count from the source upward,
  // so that a stage added at the end changes no numbers below it.
  uint32_t operation() { return ++operations_; }
  const std::shared_ptr<FileSystem>& files() const { return files_; }
  // The open files that all sources of the plan share.
  const std::shared_ptr<FilePool>& pool();
  // There is a shard in the plan, of so many ranks, which `all` elements are dealt out to.
  struct Sharded {
    uint32_t world = 1;
    uint64_t all = 0;
  };
  void set_sharded(const Sharded& sharded) { sharded_ = sharded; }
  const std::optional<Sharded>& sharded() const { return sharded_; }
  // Of all nodes that were built, in the order of a walk that takes inputs first.
  const std::vector<std::string>& titles() const { return titles_; }

 private:
  std::shared_ptr<FileSystem> files_;
  std::shared_ptr<FilePool> pool_;
  uint32_t operations_ = 0;
  std::optional<Sharded> sharded_;
  std::vector<std::string> titles_;
};

}  // namespace penstock
