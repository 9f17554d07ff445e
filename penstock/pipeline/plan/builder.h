#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/io/file_pool.h"
#include "penstock/io/record_index.h"
#include "penstock/pipeline/cache/shared_store.h"
#include "penstock/pipeline/plan/found_files.h"
#include "penstock/pipeline/plan/node.h"
#include "penstock/pipeline/stages/stage_clock.h"
#include "penstock/pipeline/streams/hidden_leaf.h"

namespace penstock {

// What a plan's nodes share while they are built. One build, one thread.
class Builder {
 public:
  // `parallel maps`: costly stretches in front of streams' stages become parallel maps, as many as
  // a ring has lanes for. Not so in a plan that a running stream opens: the workers do not know it.
  // `progress`: of passes over files; outlives the builder.
  // `policy`: of the feed.
  explicit Builder(std::shared_ptr<FileSystem> files = posix_files(), bool parallel_maps = true,
                   Progress* progress = nullptr, FailurePolicy policy = {})
      : files_(std::move(files)), progress_(progress), may_map_(parallel_maps), policy_(policy) {}

  // Stages above each other: every element goes through all of them in one thread's stack.
  static constexpr uint32_t kDeepest = 4096;

  // Builds `node` and what is below it, from the source upward. Error kInvalidArgument: the chain
  // is longer than kDeepest, or what the nodes find.
  Built build(const Node& node);

  // What was built as a stream, for stages that can go through their input in order only. An
  // element that failed and is to be left out is no element of it.
  StreamedRef as_stream(const Built& built);
  std::vector<StreamedRef> as_streams(const std::vector<Built>& built);
  // The same for the plan's own stream, which a cursor goes through.
  StreamedRef decided(StreamedRef stream) const;
  // The input of a stage in the tail that counts elements of a stream: a tail that leaves some out
  // is made before them, as a stream of its own. Others are what they are.
  Built without_gaps(const Built& built);
  // `stage`, which makes each of its elements of `n` elements of `built`. `whole`: a last one of
  // fewer elements is left out.
  Built stacked(const Built& built, uint64_t n, bool whole,
                const std::function<IndexedRef(IndexedRef)>& stage);
  // It was so of a tail only because the feed skips.
  bool apart() const { return apart_; }
  // Of the node that is being built.
  const std::string& title() const { return titles_.back(); }
  // Of elements that fail in the node that is being built.
  const FailurePolicy& policy() const { return policy_; }
  // The same for a stage that wants to know a summary of what `op` makes of each element: where
  // workers make the elements anyway and `op` is the user's code, they make that as well, in a
  // hidden leaf.
  struct Carrying {
    StreamedRef stream;
    bool hidden = false;
    SpecRef spec() const { return hidden ? without_hidden_leaf(stream->spec()) : stream->spec(); }
  };
  Carrying as_stream_with(const Built& built, const OpRef& op, Summarize summarize,
                          uint32_t operation, const std::string& title);
  // What has to be made in front of such stages by workers, from the source upward.
  const std::vector<Built>& parallel_maps() const { return maps_; }

  // The next random operation's number (RandomKey::operation). They count from the source upward,
  // so that a stage added at the end changes no numbers below it.
  uint32_t operation() { return ++operations_; }
  const std::shared_ptr<FileSystem>& files() const { return files_; }
  Progress* progress() const { return progress_; }  // nullptr: nobody watches
  // The files of all sources of the plan.
  const std::shared_ptr<FilePool>& pool();
  // What each source of files found, in the order in which they are built.
  void add_found(FoundFilesRef found) { found_.push_back(std::move(found)); }
  const std::vector<FoundFilesRef>& found() const { return found_; }
  // Files and stores of another build of these nodes: each source takes the next files, and the
  // stores are attached.
  void give(std::vector<FoundFilesRef> found, std::vector<os::Fd> stores = {});
  bool given() const { return given_.has_value(); }
  // nullptr: not given, so the source looks for files. Error kInternal: there are more sources.
  FoundFilesRef next_given();
  // There is a shard in the plan: `dealt`'s elements are dealt out to so many ranks. nullptr: a
  // stream's.
  struct Sharded {
    uint32_t world = 1;
    IndexedRef dealt;
  };
  void set_sharded(Sharded sharded) { sharded_ = std::move(sharded); }
  const std::optional<Sharded>& sharded() const { return sharded_; }
  // What caches and snapshots keep their elements in, in the order of the nodes. Errors of
  // SharedStore::attach(); kInternal: there are more of them than were given.
  void add_cache(std::shared_ptr<SharedStore> store);
  const std::vector<std::shared_ptr<SharedStore>>& caches() const { return caches_; }
  // There is a split_batch in the plan, wherever it stands.
  void count_split() { ++splits_; }
  uint32_t splits() const { return splits_; }
  // There is an on_error in the plan.
  void add_policy() { policies_ = true; }
  bool policies() const { return policies_; }
  // Of all nodes that were built, in the order of a walk that takes inputs first.
  const std::vector<std::string>& titles() const { return titles_; }
  // What the nodes became, by the places of their titles.
  const StageNumbers& stages() const { return stages_; }

 private:
  [[noreturn]] void refuse_given() const;

  std::shared_ptr<FileSystem> files_;
  std::shared_ptr<FilePool> pool_;
  std::vector<FoundFilesRef> found_;
  struct Given {
    std::vector<FoundFilesRef> found;
    std::vector<os::Fd> stores;
    size_t next = 0, next_store = 0;
  };
  std::optional<Given> given_;
  Progress* progress_;
  bool may_map_;
  FailurePolicy policy_;
  bool apart_ = false;
  std::vector<Built> maps_;
  uint32_t operations_ = 0;
  uint32_t depth_ = 0;  // of the node that is being built
  std::optional<Sharded> sharded_;
  uint32_t splits_ = 0;
  bool policies_ = false;
  std::vector<std::shared_ptr<SharedStore>> caches_;
  std::vector<std::string> titles_;
  StageNumbers stages_;
};

}  // namespace penstock
