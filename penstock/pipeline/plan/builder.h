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

// State that a plan's nodes share while they are built. One build, one thread.
class Builder {
 public:
  // `parallel_maps`: costly stages in front of streams' stages become parallel maps, as far as the
  // ring has lanes. False for a plan that a running stream opens, because the workers do not have
  // that plan. `progress`: of passes over files; must outlive the builder. `policy`: of the feed.
  explicit Builder(std::shared_ptr<FileSystem> files = posix_files(), bool parallel_maps = true,
                   Progress* progress = nullptr, FailurePolicy policy = {})
      : files_(std::move(files)), progress_(progress), may_map_(parallel_maps), policy_(policy) {}

  // Maximal depth of the chain. Each element passes through all stages on one thread's stack.
  static constexpr uint32_t kDeepest = 4096;

  // Builds `node` and its inputs, from the source upward. Error kInvalidArgument: the chain is
  // longer than kDeepest; errors of the nodes.
  Built build(const Node& node);

  // `built` as a stream, for stages that read their input in order. Its elements do not include
  // skipped ones.
  StreamedRef as_stream(const Built& built);
  std::vector<StreamedRef> as_streams(const std::vector<Built>& built);
  // Applies the policy to a stream's failures. Used for the plan's own stream, which the stream
  // reader reads.
  StreamedRef decided(StreamedRef stream) const;
  // The input of a stage in the tail that counts elements. If the tail of `built` may skip
  // elements, the result is a stream of its own, with the tail applied before it. Otherwise the
  // result is `built`.
  Built without_gaps(const Built& built);
  // Puts `stage`, which makes each element of `n` elements of `built`, on top. `whole`: a last
  // element of fewer is dropped.
  Built stacked(const Built& built, uint64_t n, bool whole,
                const std::function<IndexedRef(IndexedRef)>& stage);
  // without_gaps() made a stream of a tail only because the feed skips failed elements.
  bool skip_changes_stream() const { return skip_changes_stream_; }
  // Title of the node that is being built.
  const std::string& title() const { return titles_.back(); }
  // The policy for elements that fail in the node that is being built.
  const FailurePolicy& policy() const { return policy_; }
  // As as_stream(), for a stage that needs a Summary of op's result for each element. If workers
  // make the elements, and `op` is user code, the workers also run `op`, and the summary is in a
  // hidden leaf (`hidden`).
  struct Carrying {
    StreamedRef stream;
    bool hidden = false;
    SpecRef spec() const { return hidden ? without_hidden_leaf(stream->spec()) : stream->spec(); }
  };
  Carrying as_stream_with(const Built& built, const OpRef& op, Summarize summarize,
                          uint32_t operation, const std::string& title);
  // The parallel maps in front of streams' stages, from the source upward.
  const std::vector<Built>& parallel_maps() const { return maps_; }

  // The next random operation's number (RandomKey::operation). Numbers ascend from the source
  // upward, so that a stage added at the end changes no numbers below it.
  uint32_t operation() { return ++operations_; }
  const std::shared_ptr<FileSystem>& files() const { return files_; }
  Progress* progress() const { return progress_; }  // nullptr: not observed
  // The files of all sources of the plan.
  const std::shared_ptr<FilePool>& pool();
  // The files that each source found, in the order in which the sources are built.
  void add_found(FoundFilesRef found) { found_.push_back(std::move(found)); }
  const std::vector<FoundFilesRef>& found() const { return found_; }
  // Sets the files and stores of another build of the same nodes: each source takes the next files,
  // and the stores are attached. nullopt: the stores are this build's own.
  void give(std::vector<FoundFilesRef> found,
            std::optional<std::vector<os::Fd>> stores = std::vector<os::Fd>());
  bool given() const { return given_.has_value(); }
  // nullptr: nothing was given, so the source looks for files. Error kInternal: there are more
  // sources than were given.
  FoundFilesRef next_found();
  // The plan's shard: the elements of `dealt` are distributed over `world` ranks. nullptr: the
  // elements of a stream.
  struct Sharded {
    uint32_t world = 1;
    IndexedRef dealt;
  };
  void set_sharded(Sharded sharded) { sharded_ = std::move(sharded); }
  const std::optional<Sharded>& sharded() const { return sharded_; }
  // The stores of caches and snapshots, in the order of the nodes. Errors of SharedStore::attach();
  // kInternal: there are more stores than were given.
  void add_cache(std::shared_ptr<SharedStore> store);
  const std::vector<std::shared_ptr<SharedStore>>& caches() const { return caches_; }
  // The number of split_batch nodes in the plan.
  void count_split() { ++splits_; }
  uint32_t splits() const { return splits_; }
  // Whether there is an on_error in the plan.
  void add_policy() { policies_ = true; }
  bool policies() const { return policies_; }
  // Titles of the nodes built so far, inputs before the nodes that use them.
  const std::vector<std::string>& titles() const { return titles_; }
  // Numbers of the built stages: indices of their titles.
  const StageNumbers& stages() const { return stages_; }

 private:
  [[noreturn]] void refuse_given() const;

  std::shared_ptr<FileSystem> files_;
  std::shared_ptr<FilePool> pool_;
  std::vector<FoundFilesRef> found_;
  struct Given {
    std::vector<FoundFilesRef> found;
    std::optional<std::vector<os::Fd>> stores;
    size_t next = 0, next_store = 0;
  };
  std::optional<Given> given_;
  Progress* progress_;
  bool may_map_;
  FailurePolicy policy_;
  bool skip_changes_stream_ = false;
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
