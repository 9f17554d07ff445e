#include "penstock/pipeline/pipeline_engine.h"

#include <algorithm>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/chain_worker.h"
#include "penstock/pipeline/plan_state.h"
#include "penstock/pipeline/plan_tickets.h"

namespace penstock {
namespace {

void refuse(bool given, const char* option, const char* instead) {
  if (!given) return;
  throw Error(Code::kInvalidArgument, "Loader",
              std::string(option) + " is a Dataset's own business: use " + instead);
}

LoaderOptions options_for(const Plan& plan, LoaderOptions options) {
  refuse(options.batch_size != 0, "batch_size", "Dataset::batch");
  refuse(options.shuffle, "shuffle", "Dataset::shuffle");
  refuse(options.drop_last, "drop_last", "Dataset::batch({.drop_remainder = true})");
  refuse(options.shard.world != 1, "shard", "Dataset::shard");
  refuse(options.on_error == OnError::kReplace, "replace", "Dataset::on_error");
  if (plan.queue()) options.max_queue_size = *plan.queue();
  // Elements that go through the feed by the chunk and come out one by one have one place only.
  if (!plan.batched() && plan.rows_per_ticket() > 1) options.ordered = true;
  return options;
}

}  // namespace

PipelineEngine::PipelineEngine(std::shared_ptr<const Plan> plan, const LoaderOptions& options)
    : PipelineEngine(plan, checked(options_for(*plan, options)), Checked()) {}

// A batch is one granule: its worker asks for its room and fills it.
PipelineEngine::PipelineEngine(std::shared_ptr<const Plan> plan, const LoaderOptions& options,
                               Checked)
    : LoaderEngine(
          {std::make_unique<PlanTickets>(plan), plan->most_rows(), plan->most_rows(), false},
          options),
      plan_(std::move(plan)) {}

std::unique_ptr<Fulfiller> PipelineEngine::make_worker() {
  ChainWorker::Options options{options_.seed, options_.retries,
                               options_.on_error == OnError::kSkip};
  return std::make_unique<ChainWorker>(plan_, options, *board_, local_outlet());
}

// ---- taking ------------------------------------------------------------------------------------

std::optional<Example> PipelineEngine::take() {
  Post& post = feed_->current();
  if (auto g = feed_->failed_granule()) raise(board_->unit_at(feed_->current_seq(), *g), *g);
  Unit& unit = board_->unit_at(feed_->current_seq(), 0);
  const uint64_t bytes = unit.bytes;
  const uint64_t epoch = post.epoch;
  std::unique_ptr<Outcome> outcome = outcome_of(unit);
  std::vector<Outcome::Loss> losses;
  if (outcome != nullptr) losses = std::move(outcome->losses);
  note(losses, epoch);
  std::erase_if(losses, [](const Outcome::Loss& loss) { return loss.replaced; });
  if (!plan_->batched()) {
    hold(post, unit.worker, losses);
    if (pending_) return take_held();  // the ticket is not delivered: the position stays
    if (held_.rows() == 0) {
      feed_->skip();
    } else {
      feed_->deliver(bytes, held_.rows() - used_);
    }
    return take_held();
  }
  const uint64_t rows = post.rows - losses.size();
  if (rows == 0) {
    feed_->skip();
    return std::nullopt;
  }
  Block block = take_block(post);
  feed_->deliver(bytes, rows);
  return block.rows(0, rows).batch();
}

Block PipelineEngine::take_block(Post& post) {
  std::span<const std::byte> layout(post.layout, post.layout_length);
  if (spec_ == nullptr || !std::ranges::equal(spec_->bytes(), layout)) {
    spec_ = std::make_shared<ElementSpec>(layout);
  }
  const uint64_t rows = post.rows, bytes = post.needed_bytes;
  Lease lease = feed_->take_rows();
  return Block(spec_, rows, lease.data(), bytes, lease.owner());
}

// The elements of a ticket but for `losses`, and but for those that were handed out before; up to
// the first that is to be raised.
void PipelineEngine::hold(Post& post, uint32_t worker, const std::vector<Outcome::Loss>& losses) {
  held_epoch_ = post.epoch;
  held_step_ = post.step;
  places_.clear();
  const uint64_t skip = std::exchange(skip_, 0);
  auto loss = losses.begin();
  for (uint32_t place = 0; place < post.rows; ++place) {
    if (loss == losses.end() || loss->row != place) {
      places_.push_back(place);
      continue;
    }
    if (loss->error != nullptr && place >= skip) {
      pending_ = {post.epoch, post.step, loss->index, loss->stage, worker, loss->error};
      skip_ = place;
      break;
    }
    ++loss;
  }
  for (used_ = 0; used_ < places_.size() && places_[used_] < skip;) ++used_;
  held_ = used_ == places_.size() ? Block() : take_block(post).rows(0, places_.size());
}

Example PipelineEngine::hand_out() {
  Example element = held_.row(used_++);
  if (used_ == held_.rows()) held_ = Block();
  return element;
}

std::optional<Example> PipelineEngine::take_held() {
  if (held_.rows() != 0) return hand_out();
  if (pending_) {
    raise(*std::exchange(pending_, std::nullopt));
  }
  return std::nullopt;
}

void PipelineEngine::drop_held() {
  held_ = Block();
  pending_.reset();
  skip_ = 0;
}

uint64_t PipelineEngine::index_of(const Ticket& ticket, uint32_t row) const {
  uint64_t position = 0;
  plan_->locate(ticket.epoch, ticket.base, ticket.step, ticket.begin + row, {&position, 1});
  return position;
}

void PipelineEngine::describe(Snapshot& snapshot) const {
  for (const std::string& title : plan_->titles()) {
    snapshot.title += (snapshot.title.empty() ? "" : " > ") + title;
  }
  snapshot.batch_size = plan_->batched() ? plan_->most_rows() : 0;
}

// ---- place --------------------------------------------------------------------------------------

uint64_t PipelineEngine::steps() const { return plan_->length(0); }

LoaderState PipelineEngine::state() const {
  std::lock_guard lock(consumer_);
  const Position& at = feed_->position();
  const uint64_t per = plan_->rows_per_ticket();
  LoaderState state;
  state.epoch = at.epoch;
  state.batches = at.step * per + skip_;
  if (held_.rows() != 0) {
    state.epoch = held_epoch_;
    state.batches = held_step_ * per + places_[used_ - 1] + 1;
  }
  for (uint64_t step : feed_->ahead()) state.ahead.push_back(step * per);
  state.length = plan_->length(0);
  state.plan = plan_->titles();
  return state;
}

void PipelineEngine::restore(const LoaderState& state) {
  std::lock_guard lock(consumer_);
  check_open();
  check_same_plan(state, *plan_);
  const uint64_t per = plan_->rows_per_ticket();
  std::set<uint64_t> ahead;
  for (uint64_t batch : state.ahead) {
    if (batch < state.batches || batch % per != 0) {
      throw Error(Code::kInvalidArgument, "restore", "'ahead' names what cannot be ahead");
    }
    ahead.insert(batch / per);
  }
  resume_at({state.epoch, 0, state.batches / per}, std::move(ahead));
  skip_ = state.batches % per;
}

}  // namespace penstock
