#include "penstock/pipeline/plan/plan.h"

#include <algorithm>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/stages/memory_rows.h"
#include "penstock/pipeline/stages/split_batch.h"

namespace penstock {
namespace {

constexpr uint64_t kLargeElement = 16 << 10;

// Cheap elements are scheduled by the chunk.
uint32_t per_ticket(const Indexed& chain) {
  SpecRef spec = chain.spec();
  if (chain.costly() || spec == nullptr) return 1;
  return spec->fixed_bytes() > kLargeElement ? 1 : Chunk::kRows;
}

}  // namespace

Plan::Plan(const Node& node, bool skip, Progress* progress, std::optional<Given> given) {
  const Node* outermost = &node;
  while (const auto& part = outermost->feed_part) {
    if (__builtin_mul_overflow(rounds_, part->rounds, &rounds_)) rounds_ = kEndless;
    if (!queue_) queue_ = part->queue;
    outermost = outermost->inputs[0].get();
  }
  Builder builder(posix_files(), true, progress, {skip, skip});
  if (given) {
    builder.give(read_found_files(given->files, builder.pool()), std::move(given->stores));
  }
  built_ = builder.build(*outermost);
  const Streamed* last_stream = stream();
  if (last_stream != nullptr) built_.stream = builder.decided(std::move(built_.stream));
  for (const Built& parallel_map : builder.parallel_maps()) {
    maps_.push_back(std::make_shared<Plan>(parallel_map, builder.stages()));
  }
  titles_ = builder.titles();
  stages_ = builder.stages();
  caches_ = builder.caches();
  found_ = builder.found();
  policies_ = builder.policies();
  skip_changes_stream_ = builder.skip_changes_stream();
  find_shard(*outermost, builder);
  for (IndexedRef stage = top();;) {
    if ((root_ = std::dynamic_pointer_cast<const Collated>(stage)) != nullptr) break;
    auto mapped = std::dynamic_pointer_cast<const IndexMapped>(stage);
    if (mapped == nullptr) break;
    above_.push_back(mapped);
    stage = mapped->input();
  }
  find_split(builder);
  const auto outermost_stage = static_cast<uint32_t>(titles_.size() - 1);
  if (last_stream != nullptr) stream_stage_ = stages_.find(last_stream).value_or(outermost_stage);
  if (root_ != nullptr) {
    last_stage_ = stages_.find(static_cast<const Indexed*>(root_.get())).value_or(outermost_stage);
    chain_ = root_->input();
    (void)chain_->spec();  // throws if the spec is invalid
    listed_ = outermost->listed;
    find_copied();
    return;
  }
  last_stage_ = stages_.find(top().get()).value_or(outermost_stage);
  above_.clear();
  chain_ = top();
  per_ticket_ = python() ? 1 : per_ticket(*chain_);
}

Plan::Plan(const Built& built, const StageNumbers& stages) : built_(built), stages_(stages) {
  chain_ = top();
  last_stage_ = stages_.find(chain_.get()).value_or(0);
  if (stream() != nullptr) stream_stage_ = stages_.find(stream()).value_or(0);
}

// Checks whether equal shares of the plan's batches are equal shares of the shard's input.
void Plan::find_shard(const Node& outermost, const Builder& builder) {
  if (stream() == nullptr) dealt_ = top();
  if (!builder.sharded()) return;
  world_ = builder.sharded()->world;
  dealt_ = builder.sharded()->dealt;
  if (stream() != nullptr) return;  // a stream's place is that of one rank only
  for (const Node* node = &outermost;; node = node->inputs[0].get()) {
    if (node->inputs_per_element == 0) return;
    below_ *= node->inputs_per_element;
    if (node->deals_out) break;
  }
  shard_moves_ = true;
}

// Only delivered batches can be split, and only by one split_batch.
void Plan::find_split(const Builder& builder) {
  if (builder.splits() == 0) return;
  uint32_t found = 0;
  for (const auto& stage : above_) {
    auto* split = dynamic_cast<const SplitBatch*>(stage.get());
    if (split == nullptr) continue;
    parts_ = split->parts();
    ++found;
  }
  if (root_ == nullptr || found != 1 || builder.splits() != 1) {
    throw Error(Code::kInvalidArgument, "split_batch",
                "cuts batches as they are handed out: put it behind batch(n), once, with nothing "
                "between or behind them but take, repeat and prefetch, or, where no stream is in "
                "the chain, skip, shard and shuffle");
  }
}

void Plan::find_copied() {
  Copied found;
  for (const Indexed* stage = chain_.get();;) {
    found.stages.push_back(stages_.find(stage).value_or(last_stage_));
    found.rows = dynamic_cast<const MemoryRows*>(stage);
    if (found.rows != nullptr) break;
    auto* mapped = dynamic_cast<const IndexMapped*>(stage);
    if (mapped == nullptr) return;
    found.above.push_back(mapped);
    stage = mapped->input().get();
  }
  if (found.rows->has_element_layout()) copied_ = std::move(found);
}

uint64_t Plan::length(uint64_t base) const { return top()->length(base * below_); }

std::optional<uint64_t> Plan::all_batches() const {
  const uint64_t all = this->all();
  if (stream() != nullptr || all == kEndless || (world_ != 1 && !shard_moves_)) return std::nullopt;
  return all / below_ + (all % below_ != 0);
}

uint64_t Plan::steps(uint64_t base) const {
  const uint64_t all = length(base);
  if (all == kEndless || per_ticket_ == 1) return all;
  return all / per_ticket_ + (all % per_ticket_ != 0);
}

uint64_t Plan::stream_rows() const {
  return root_ != nullptr ? root_->max_rows() : per_output() == 1 ? per_ticket_ : per_output();
}

std::optional<uint64_t> Plan::known_length() const {
  if (stream() == nullptr) return length(0);
  auto all = stream()->length();
  if (!all || *all == kEndless) return all;
  return *all / per_output() + (!drop_partial() && *all % per_output() != 0);
}

bool Plan::python() const {
  return chain_->python() || std::ranges::any_of(maps_, [](const auto& parallel_map) {
           return parallel_map->python();
         });
}

bool Plan::bound() const {
  const SpecRef spec = chain_->spec();
  const bool padded = root_ != nullptr && root_->padding() != nullptr;
  return spec != nullptr && spec->fixed() && chain_->in_place() && !padded;
}

uint32_t Plan::rows(uint64_t epoch, uint64_t base, uint64_t step) const {
  if (root_ == nullptr) {
    return static_cast<uint32_t>(
        std::min<uint64_t>(length(base) - step * per_ticket_, per_ticket_));
  }
  At at{epoch, base * below_};
  uint64_t batch = step;
  for (const auto& stage : above_) stage->map(at, {&batch, 1});
  return static_cast<uint32_t>(root_->rows(batch, at.base));
}

uint32_t Plan::max_rows() const {
  return root_ == nullptr ? per_ticket_ : static_cast<uint32_t>(root_->max_rows());
}

At Plan::locate(uint64_t epoch, uint64_t base, uint64_t step, uint64_t first,
                std::span<uint64_t> out) const {
  At at{epoch, base * below_};
  if (root_ == nullptr) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = step * per_ticket_ + first + i;
    return at;
  }
  uint64_t batch = step;
  for (const auto& stage : above_) stage->map(at, {&batch, 1});
  for (size_t i = 0; i < out.size(); ++i) out[i] = root_->element(batch, first + i, at.base);
  return at;
}

uint64_t Plan::index_of(uint64_t epoch, uint64_t base, uint64_t step, uint64_t row) const {
  uint64_t position = 0;
  const At at = locate(epoch, base, step, row, {&position, 1});
  return chain_->index(at, position).value_or(position);
}

}  // namespace penstock
