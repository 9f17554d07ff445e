#include "penstock/pipeline/engine/pipeline_engine.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/pipeline/element/column_block.h"
#include "penstock/pipeline/engine/chain_worker.h"
#include "penstock/pipeline/engine/plan_tickets.h"
#include "penstock/pipeline/transformations/split_batch.h"

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
  if (plan.stream() != nullptr) options.ordered = true;
  return options;
}

Cursor::Shares shares_of(const Plan& plan, const LoaderOptions& options) {
  return Cursor::shares_of(options.max_bytes, plan.stream() != nullptr,
                           !Sections::lanes_for(plan, *options.workers).empty());
}

}  // namespace

PipelineEngine::PipelineEngine(std::shared_ptr<const Plan> plan, const LoaderOptions& options)
    : PipelineEngine(plan, checked(options_for(*plan, options)),
                     tuning_of(options_for(*plan, options), true), Checked()) {}

PipelineEngine::PipelineEngine(std::shared_ptr<const Plan> plan, const LoaderOptions& options,
                               const Tuner::Limits& tuning, Checked)
    : LoaderEngine({std::make_unique<PlanTickets>(plan), plan->most_rows(), 0, false,
                    Sections::lanes_for(*plan, workers_of(options)), tuning,
                    shares_of(*plan, options).feed, plan->policies()},
                   options),
      plan_(std::move(plan)),
      output_(plan_, options_.seed, *feed_, tickets()) {
  if (plan_->stream() == nullptr) return;
  const uint32_t window = *options_.max_queue_size + workers_of(options_);
  const uint32_t most =
      tuning.queue ? std::max(window, tuning.most_queue + workers_of(options_)) : window;
  Cursor::Options of{window, options_.seed, options_.retries, options_.on_error == OnError::kSkip,
                     workers_of(options_) > 0};
  const Cursor::Shares shares = shares_of(*plan_, options_);
  of.max_bytes = shares.cursor;
  of.all_bytes = shares.all;
  if (board_->lanes() > 1) {
    sections_ = std::make_unique<Sections>(
        plan_, *board_, *arena_, inlet_, Sections::Options{workers_of(options_), shares.sections});
    of.sections = sections_.get();
  }
  cursor_ = std::make_unique<Cursor>(plan_, of, *arena_, [this] { board_->nudge_consumer(); });
  tickets().set_cursor(cursor_.get(), *arena_, 2 * most + 4);
}

void PipelineEngine::start_others() {
  if (cursor_ == nullptr || reading_.joinable()) return;
  reading_ = std::thread([engine = shared_from_this(), this] {
    os::block_all_signals();
    cursor_->run();
  });
}

void PipelineEngine::close_others() {
  if (cursor_ == nullptr) return;
  cursor_->close();
  if (!reading_.joinable()) return;
  if (reading_.get_id() == std::this_thread::get_id()) {
    reading_.detach();
  } else {
    reading_.join();
  }
}

void PipelineEngine::let_go_of_others() {
  if (cursor_ != nullptr) cursor_->let_go();
}

void PipelineEngine::raise_failed() {
  auto failed = tickets().take_failure();
  if (!failed) throw Error(Code::kInternal, "stream", "a failure without a reason");
  const Position& at = feed_->position();
  raise({at.epoch, at.step, failed->position, failed->stage, 0, failed->error});
}

void PipelineEngine::leave_epoch() {
  if (cursor_ != nullptr) {  // what was lost behind the last batch
    PlanTickets::Leftover behind = tickets().take_leftover(feed_->position());
    note(losses_of(behind.losses), behind.epoch);
  }
  for (const auto& cache : plan_->caches()) cache->end_pass();
}

std::unique_ptr<Fulfiller> PipelineEngine::make_worker() {
  ChainWorker::Options options{options_.seed, options_.retries,
                               options_.on_error == OnError::kSkip};
  return worker_of_plan(plan_, options, *board_, local_outlet);
}

// ---- taking ------------------------------------------------------------------------------------

Example PipelineEngine::example_of(const PlanOutput::Item& item) const {
  if (plan_->parts() != 0) return split_example(item.block, plan_->parts());
  if (!item.row) return item.block.batch();
  return with_columns(item.block.row(*item.row), *item.block.spec());
}

std::optional<Example> PipelineEngine::take() {
  const uint64_t seq = feed_->current_seq();
  if (output_.apart(*board_)) return std::nullopt;
  if (auto g = feed_->failed_granule()) raise(board_->unit_at(seq, *g), *g);
  const uint32_t worker = board_->unit_at(seq, 0).worker;
  auto [bytes, losses] = output_.gather(*board_, [this](Unit& unit) {
    auto outcome = take_outcome(unit);
    return outcome ? std::move(outcome->losses) : std::vector<Outcome::Loss>();
  });
  Post& post = feed_->current();
  if (cursor_ != nullptr) {
    auto before = losses_of(tickets().take_forgiven({post.epoch, post.base, post.step}));
    losses.insert(losses.end(), std::make_move_iterator(before.begin()),
                  std::make_move_iterator(before.end()));
  }
  auto item = output_.take(bytes, worker, std::move(losses));
  count_losses();
  if (item) return example_of(*item);
  return take_held();
}

void PipelineEngine::count_losses() {
  const PlanOutput::Losses lost = output_.take_losses();
  note(lost.losses, lost.epoch);
}

std::optional<Example> PipelineEngine::take_held() {
  auto item = output_.take_held();
  count_losses();
  if (item) return example_of(*item);
  if (auto failure = output_.take_failure()) raise(std::move(*failure));
  return std::nullopt;
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

std::vector<StageSnapshot> PipelineEngine::stream_stages() const {
  if (cursor_ == nullptr) return {};
  return stages_of(figures_of(cursor_->stages()), plan_->titles());
}

// ---- place --------------------------------------------------------------------------------------

uint64_t PipelineEngine::steps() const { return plan_->known_length().value_or(UINT64_MAX); }

LoaderState PipelineEngine::state() const {
  const auto lock = consume();
  return output_.state();
}

void PipelineEngine::restore(const LoaderState& state) {
  const auto lock = consume();
  check_open();
  PlanOutput::Place place = output_.place_of(state);
  resume_at(place.position, std::move(place.ahead));
  output_.arrived(place);
}

}  // namespace penstock
