#include "penstock/pipeline/plan/builder.h"

#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/stages/stream_chunk.h"
#include "penstock/pipeline/streams/streams.h"
#include "penstock/workers/ticket_ring_layout.h"

namespace penstock {

Built Builder::build(const Node& node) {
  if (++depth_ > kDeepest) {
    throw Error(Code::kInvalidArgument, "Dataset",
                "more than " + std::to_string(kDeepest) +
                    " stages follow each other; give concatenate all of its inputs at once, and "
                    "map one function that calls the others");
  }
  const FailurePolicy here = policy_;
  if (node.policy_before) policy_ = node.policy_before(here);
  std::vector<Built> inputs;
  inputs.reserve(node.inputs.size());
  for (const Node::Ref& input : node.inputs) {
    inputs.push_back(build(*input));
    if (inputs.back().stream != nullptr && node.refuses_streams) {
      throw Error(Code::kInvalidArgument, node.title,
                  "cannot follow " + titles_.back() +
                      ", whose elements only come one after the other" + *node.refuses_streams);
    }
  }
  policy_ = here;
  const auto number = static_cast<uint32_t>(titles_.size());
  titles_.push_back(node.title);
  Built built = node.build(std::move(inputs), *this);
  stages_.add(built.indexed.get(), number);
  stages_.add(built.stream.get(), number);
  // Reading a stream chunk is counted for the stage that uses its elements.
  if (built.tail != nullptr && !is_chunk_source(*built.tail)) {
    stages_.add(built.tail.get(), number);
  }
  --depth_;
  return built;
}

StreamedRef Builder::as_stream(const Built& input) {
  const bool whole = input.stream == nullptr;
  Built built = input;
  if (!whole) {
    built.stream = decided(std::move(built.stream));
    if (built.per_output == 1 && is_chunk_source(*built.tail)) return built.stream;
  }
  StreamedRef serial = whole ? indexed_stream(built.indexed) : tailed_stream(built);
  const bool costly = whole ? built.indexed->costly() : built.tail->costly();
  if (!costly || !may_map_ || maps_.size() + 1 >= kMaxLanes) {
    return decided(std::move(serial));
  }
  maps_.push_back(std::move(built));
  return decided(parallel_map_stream(static_cast<uint32_t>(maps_.size() - 1), std::move(serial)));
}

std::vector<StreamedRef> Builder::as_streams(const std::vector<Built>& inputs) {
  std::vector<StreamedRef> streams;
  streams.reserve(inputs.size());
  for (const Built& input : inputs) streams.push_back(as_stream(input));
  return streams;
}

// Without a policy that skips, undecided failures can stay: the first reader raises them.
StreamedRef Builder::decided(StreamedRef stream) const {
  if (!policy_.skip && !policy_.feed_skips) return stream;
  return policy_stream(std::move(stream), policy_);
}

Built Builder::without_gaps(const Built& built) {
  const bool gaps = built.may_skip || (built.may_fail && policy_.skip && !policy_.by_feed);
  const bool made_before = !gaps && built.may_fail && policy_.feed_skips;
  if (built.stream == nullptr || !(gaps || made_before)) return built;
  skip_changes_stream_ |= made_before;
  return Built::of(as_stream(built));
}

// A tail stacks once: what is stacked again is a stream of what was stacked before.
Built Builder::stacked(const Built& input, uint64_t n, bool whole,
                       const std::function<IndexedRef(IndexedRef)>& stage) {
  if (input.stream == nullptr) return input.with(stage);
  Built built = input.per_output == 1 ? without_gaps(input) : Built::of(as_stream(input));
  built.per_output = n;
  built.drop_partial = whole;
  return built.with(stage);
}

Builder::Carrying Builder::as_stream_with(const Built& built, const OpRef& op, Summarize summarize,
                                          uint32_t operation, const std::string& title) {
  const bool costly = built.stream == nullptr ? built.indexed->costly() : built.tail->costly();
  if (!costly || op == nullptr || !op->user_code()) return {as_stream(built), false};
  const Built carrying = built.with([&](IndexedRef input) {
    return with_hidden_leaf(std::move(input), op, summarize, operation, title);
  });
  // The time counts for the stage that is being built.
  const auto number = static_cast<uint32_t>(titles_.size() - 1);
  stages_.add(carrying.indexed.get(), number);
  stages_.add(carrying.tail.get(), number);
  return {as_stream(carrying), true};
}

const std::shared_ptr<FilePool>& Builder::pool() {
  if (pool_ == nullptr) pool_ = std::make_shared<FilePool>(files_);
  return pool_;
}

void Builder::give(std::vector<FoundFilesRef> found, std::optional<std::vector<os::Fd>> stores) {
  given_ = {std::move(found), std::move(stores)};
}

FoundFilesRef Builder::next_found() {
  if (!given_) return nullptr;
  if (given_->next == given_->found.size()) refuse_given();
  return given_->found[given_->next++];
}

void Builder::add_cache(std::shared_ptr<SharedStore> store) {
  if (given_ && given_->stores) {
    std::vector<os::Fd> its;
    while (its.size() < store->fd_count()) {
      if (given_->next_store == given_->stores->size()) refuse_given();
      its.push_back(std::move((*given_->stores)[given_->next_store++]));
    }
    store->attach(std::move(its));
  }
  caches_.push_back(std::move(store));
}

void Builder::refuse_given() const {
  throw Error(Code::kInternal, titles_.back(), "what was given is another plan's");
}

}  // namespace penstock
