#include "penstock/pipeline/engine/sample_engine.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/engine/plan_state.h"

namespace penstock {
namespace {

Order::Options order_options(const LoaderOptions& o, uint64_t length) {
  return {length,       std::max<uint64_t>(o.batch_size, 1),
          o.shuffle,    o.seed,
          o.drop_last,  o.shard.rank,
          o.shard.world};
}

// Rows that a batch will have at most. A dataset may grow at a hook: then its granules do.
uint64_t rows_of(const LoaderOptions& options, uint64_t size) {
  return std::clamp<uint64_t>(options.batch_size, 1, std::max<uint64_t>(size, 1));
}

// Rows of a batch that one worker fills at a time.
uint32_t granule_rows(const LoaderOptions& options, uint32_t workers, uint64_t size) {
  if (options.batch_size > UINT32_MAX) {
    throw Error(Code::kInvalidArgument, "Loader", "batch_size is above 2^32");
  }
  uint64_t rows = rows_of(options, size);
  uint64_t share = (rows + std::max(workers, 1u) - 1) / std::max(workers, 1u);
  share = std::max(share, std::min<uint64_t>(rows, 8));
  return static_cast<uint32_t>(std::min<uint64_t>(share, kMaxGranuleRows));
}

std::string type_name(const std::type_info& type) {
  int status = 0;
  std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), &std::free);
  return name ? name.get() : type.name();
}

}  // namespace

SampleEngine::SampleEngine(std::unique_ptr<Source> source, const LoaderOptions& options)
    : SampleEngine(source->size(), checked(options), tuning_of(options, false), source) {}

SampleEngine::SampleEngine(uint64_t size, const LoaderOptions& options, const Tuner::Limits& tuning,
                           std::unique_ptr<Source>& source)
    : LoaderEngine({std::make_unique<IndexedTickets>(Order(order_options(options, size))),
                    rows_of(options, size),
                    granule_rows(options, workers_of(options), size),
                    source->hooked(),
                    {},
                    tuning},
                   options),
      source_(std::move(source)),
      order_(order_options(options, size)) {}

std::unique_ptr<Fulfiller> SampleEngine::make_worker() {
  LoaderWorker::Plan plan{options_.batch_size != 0, options_.on_error, options_.retries};
  const LoaderWorker::Orders& orders = *this;
  return std::make_unique<LoaderWorker>(plan, *source_, orders, *board_);
}

void SampleEngine::describe(Snapshot& snapshot) const {
  snapshot.title = type_name(source_->type());
  snapshot.batch_size = options_.batch_size;
}

Order SampleEngine::order() const {
  std::lock_guard lock(order_mutex_);
  return order_;
}

// ---- epochs -------------------------------------------------------------------------------------

void SampleEngine::enter_epoch(uint64_t epoch) {
  if (source_->hooked() && open_epoch_ != epoch) {
    leave_epoch();
    settle();
    source_->on_epoch_begin(epoch);
    open_epoch_ = epoch;
    uint64_t length = source_->size();
    if (length != order_.options().length) {
      std::lock_guard lock(order_mutex_);
      order_ = Order(order_options(options_, length));
      tickets().set_order(order_);
      feed_->set_version(++version_);
    }
  }
  LoaderEngine::enter_epoch(epoch);
}

void SampleEngine::leave_epoch() {
  if (!open_epoch_) return;
  settle();
  uint64_t epoch = *std::exchange(open_epoch_, std::nullopt);
  source_->on_epoch_end(epoch);
}

// ---- place --------------------------------------------------------------------------------------

uint64_t SampleEngine::steps() const { return order().steps(); }

LoaderState SampleEngine::state() const {
  const auto lock = consume();
  const Position& at = feed_->position();
  const auto& [rank, world] = options_.shard;
  LoaderState state;
  state.epoch = at.epoch;
  state.batches = at.base + at.step * world;
  state.seed = options_.seed;
  state.shuffle = options_.shuffle;
  state.batch_size = options_.batch_size;
  state.length = order_.options().length;
  for (uint64_t step : feed_->ahead()) state.ahead.push_back(at.base + step * world + rank);
  return state;
}

void SampleEngine::restore(const LoaderState& state) {
  const auto lock = consume();
  check_open();
  auto same = [](const char* what, uint64_t theirs, uint64_t ours) {
    if (theirs == ours) return;
    throw Error(Code::kInvalidArgument, "restore",
                std::string("the state was taken with ") + what + " " + std::to_string(theirs) +
                    ", this Loader has " + std::to_string(ours) + "; make them equal");
  };
  same("seed", state.seed, options_.seed);
  same("shuffle", state.shuffle, options_.shuffle);
  same("batch_size", state.batch_size, options_.batch_size);
  same("length", state.length, order_.options().length);
  const auto& [rank, world] = options_.shard;
  const uint64_t batch_size = std::max<uint64_t>(options_.batch_size, 1);
  const uint64_t all = state.length / batch_size + (state.length % batch_size != 0);
  check_within_epoch(state.batches, all, world, "batches");
  const uint64_t left = order_.steps(state.batches);
  std::set<uint64_t> ahead;
  for (uint64_t batch : state.ahead) {
    uint64_t first = state.batches + rank;
    if (batch < first || (batch - first) % world != 0 || (batch - first) / world >= left) {
      throw Error(Code::kInvalidArgument, "restore",
                  "a state of an unordered feed restores at its own shard only");
    }
    ahead.insert((batch - first) / world);
  }
  if (open_epoch_ != state.epoch) open_epoch_.reset();
  resume_at({state.epoch, state.batches, 0}, std::move(ahead));
}

// ---- taking ------------------------------------------------------------------------------------

// The batch that poll() found; nothing if it vanished (skipped).
std::optional<Example> SampleEngine::take() {
  Post& post = feed_->current();
  uint64_t seq = feed_->current_seq();
  if (auto g = feed_->failed_granule()) raise(board_->unit_at(seq, *g), *g);
  Unit& unit = board_->unit_at(seq, 0);
  if (unit.kind == ResultKind::kRows) return take_rows(post);
  uint64_t bytes = unit.bytes;
  bool skipped = unit.kind == ResultKind::kSkipped;
  std::unique_ptr<Outcome> outcome = take_outcome(unit);
  if (outcome == nullptr) throw Error(Code::kInternal, "Loader", "a result without a batch");
  note(outcome->losses, post.epoch);
  if (skipped) {
    feed_->skip();
    return std::nullopt;
  }
  feed_->deliver(bytes, 1);
  return std::move(outcome->batch);
}

std::optional<Example> SampleEngine::take_rows(Post& post) {
  uint64_t seq = feed_->current_seq();
  uint64_t bytes = 0;
  std::vector<uint32_t> lost;
  for (uint32_t g = 0; g < post.granules; ++g) {
    Unit& unit = board_->unit_at(seq, g);
    bytes += unit.bytes;
    std::unique_ptr<Outcome> outcome = take_outcome(unit);
    if (outcome == nullptr) continue;
    note(outcome->losses, post.epoch);
    for (const Outcome::Loss& loss : outcome->losses) {
      if (!loss.replaced) lost.push_back(loss.row);
    }
  }
  uint64_t rows = post.rows - lost.size();
  if (rows == 0) {
    feed_->skip();
    return std::nullopt;
  }
  std::span<const std::byte> known = layout_.bytes();
  if (known.size() != post.layout_length ||
      std::memcmp(known.data(), post.layout, known.size()) != 0) {
    layout_ = SampleLayout(std::span(post.layout, post.layout_length));
    columns_ = RowLayout(layout_.fields(), post.rows);
  } else if (columns_.rows() != post.rows) {
    columns_ = RowLayout(layout_.fields(), post.rows);
  }
  Lease lease = feed_->take_rows();
  columns_.close_gaps(lease.data(), lost);
  Example batch;
  for (size_t f = 0; f < layout_.size(); ++f) {
    const Field& field = columns_.fields()[f];
    batch.set(layout_.name(f),
              Tensor::view(*field.dtype, columns_.column_shape(f, rows), lease, field.offset));
  }
  feed_->deliver(bytes, rows);
  return batch;
}

uint64_t SampleEngine::index_of(const Ticket& ticket, uint32_t row) const {
  uint64_t index = 0;
  order_.indices(ticket.epoch, ticket.base, ticket.step, ticket.begin + row, {&index, 1});
  return index;
}

}  // namespace penstock
