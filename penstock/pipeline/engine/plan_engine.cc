#include "penstock/pipeline/engine/plan_engine.h"

#include <iterator>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {

PlanEngine::PlanEngine(std::shared_ptr<const Plan> plan, const EngineSettings& settings,
                       const MakeTransport& transport, const MakeTickets& lists)
    : FeedEngine(
          settings_of(*plan, settings), needs_of(*plan, settings),
          [&](Allocator& arena) {
            auto tickets = std::make_unique<PlanTickets>(plan);
            if (lists) tickets->set_lists(lists(arena));
            return tickets;
          },
          [this](Unit& unit) { transport_->discard(unit); }),
      plan_(std::move(plan)),
      transport_(transport(*this)),
      output_(plan_, this->settings().seed, feed(), tickets()) {
  if (plan_->stream() == nullptr) return;
  make_cursor(Cursor::shares_of(settings.max_bytes, true, board().lanes() > 1));
}

PlanEngine::~PlanEngine() {
  cursor_.reset();  // with what its sections made
  sections_.reset();
  feed().drain();
}

EngineSettings PlanEngine::settings_of(const Plan& plan, EngineSettings settings) {
  // Elements that go through the feed by the chunk and come out one by one have one place only.
  if (!plan.batched() && plan.rows_per_ticket() > 1) settings.ordered = true;
  if (plan.stream() != nullptr) {
    settings.ordered = true;
    if (settings.workers == 0) settings.queue = 1;
  }
  return settings;
}

FeedEngine::Needs PlanEngine::needs_of(const Plan& plan, const EngineSettings& settings) {
  const bool streams = plan.stream() != nullptr;
  Needs needs;
  needs.rows = plan.most_rows();
  needs.lanes = Sections::lanes_for(plan, settings.workers);
  needs.max_bytes = Cursor::shares_of(settings.max_bytes, streams, !needs.lanes.empty()).feed;
  // Without workers a stream, or a sampler, is asked for no more than what is needed now.
  needs.on_asking = settings.workers == 0 && (streams || plan.listed());
  needs.raise = !plan.policies();
  return needs;
}

void PlanEngine::make_cursor(const Cursor::Shares& shares) {
  const EngineSettings& s = settings();
  Cursor::Options of{s.queue + s.workers, s.seed, s.retries, s.on_error == OnError::kSkip,
                     s.workers > 0};
  of.max_bytes = shares.cursor;
  of.all_bytes = shares.all;
  of.attend = [this] { transport_->attend(); };
  if (board().lanes() > 1) {
    sections_ = std::make_unique<Sections>(plan_, board(), arena(), transport_->inlet(),
                                           Sections::Options{s.workers, shares.sections});
    of.sections = sections_.get();
  }
  cursor_ = std::make_unique<Cursor>(plan_, of, arena(), [this] { board().nudge_consumer(); });
  tickets().set_cursor(cursor_.get(), arena(), 2 * (longest_queue() + s.workers) + 4);
}

std::unique_ptr<Fulfiller> PlanEngine::make_worker(bool in_line) const {
  const EngineSettings& s = settings();
  ChainWorker::Options options{s.seed, s.retries, s.on_error == OnError::kSkip};
  options.in_line = in_line;
  return worker_of_plan(plan_, options, board(), [this] { return transport_->outlet(); });
}

std::vector<StageSnapshot> PlanEngine::worker_stages() const {
  return stages_of(worker_figures(), plan_->titles());
}

std::vector<StageSnapshot> PlanEngine::stream_stages() const {
  if (cursor_ == nullptr) return {};
  return stages_of(figures_of(cursor_->stages()), plan_->titles());
}

// ---- taking -------------------------------------------------------------------------------------

void PlanEngine::add_losses(const std::vector<Outcome::Loss>& losses, uint64_t epoch) {
  for (const Outcome::Loss& loss : losses) {
    if (loss.error != nullptr) continue;  // it is raised, not lost
    add_loss({epoch, loss.index, loss.reason}, loss.replaced);
  }
}

PlanEngine::Taken PlanEngine::take_held() {
  auto item = output_.take_held();
  const PlanOutput::Losses lost = output_.take_losses();
  add_losses(lost.losses, lost.epoch);
  if (item) return {std::move(item), std::nullopt};
  return {std::nullopt, output_.take_failure()};
}

PlanEngine::Taken PlanEngine::take() {
  const Post& post = feed().current();
  const Position at{post.epoch, post.base, post.step};
  const uint32_t worker = board().unit_at(feed().current_seq(), 0).worker;
  auto [bytes, losses] =
      output_.gather(board(), [this](Unit& unit) { return transport_->losses_in(unit); });
  if (cursor_ != nullptr) {
    auto before = losses_of(tickets().take_losses(at));
    losses.insert(losses.end(), std::make_move_iterator(before.begin()),
                  std::make_move_iterator(before.end()));
  }
  auto item = output_.take(bytes, worker, std::move(losses));
  const PlanOutput::Losses lost = output_.take_losses();
  add_losses(lost.losses, lost.epoch);
  if (!item) return take_held();
  delivered_epoch_ = at.epoch;
  return {std::move(item), std::nullopt};
}

LoaderFailure PlanEngine::failure_of(Unit& unit, const Ticket& ticket) {
  LoaderFailure failure{ticket.epoch, ticket.step, 0, {}, unit.worker, nullptr};
  std::unique_ptr<Outcome> outcome = take_outcome(unit);
  failure.index = outcome->index;
  failure.stage = std::move(outcome->stage);
  failure.error = std::move(outcome->error);
  return failure;
}

LoaderFailure PlanEngine::stream_failure() {
  auto failed = tickets().take_failure();
  if (!failed) throw Error(Code::kInternal, "stream", "a failure without a reason");
  const Position& at = feed().position();
  return {at.epoch, at.step, failed->position, failed->stage, 0, failed->error};
}

// ---- passes and places --------------------------------------------------------------------------

uint64_t PlanEngine::pass_of(uint64_t epoch) const {
  return plan_->rounds() == kEndless ? 0 : epoch / plan_->rounds();
}

std::optional<uint64_t> PlanEngine::round(uint64_t epoch) const {
  const uint64_t at = feed().position().epoch;
  const uint64_t rounds = plan_->rounds();
  if (at != epoch && pass_of(at) != pass_of(epoch)) return std::nullopt;
  // Of rounds that are known to be empty the first is enough.
  if ((at != epoch || rounds == kEndless) && plan_->known_length() == uint64_t{0}) {
    return std::nullopt;
  }
  // A whole round gave nothing: of rounds without end the next ones will not either.
  if (at > delivered_epoch_ + 1 && rounds == kEndless) return std::nullopt;
  return at;
}

void PlanEngine::leave_round() {
  if (cursor_ == nullptr) return;
  PlanTickets::Leftover behind = tickets().take_leftover(feed().position());
  add_losses(losses_of(behind.losses), behind.epoch);
}

bool PlanEngine::gave_all(uint64_t epoch) const {
  return pass_of(feed().position().epoch) != pass_of(epoch) && !output_.anything_held();
}

bool PlanEngine::amid() const {
  const Position at = output_.position();
  const uint64_t rounds = plan_->rounds();
  return (rounds == kEndless ? at.epoch : at.epoch % rounds) != 0 || at.step != 0 ||
         !feed().ahead().empty() || output_.anything_held();
}

uint64_t PlanEngine::begin_pass(bool resumed, bool amid) {
  delivered_epoch_ = output_.position().epoch;
  if (!amid || resumed) return delivered_epoch_;
  const uint64_t epoch = delivered_epoch_, rounds = plan_->rounds();
  output_.drop_held();
  // A pass without an end is begun anew.
  delivered_epoch_ = rounds == kEndless ? epoch + 1 : epoch - epoch % rounds + rounds;
  feed().seek({delivered_epoch_, 0, 0});
  return delivered_epoch_;
}

void PlanEngine::restore(const LoaderState& state) {
  PlanOutput::Place place = output_.place_of(state);
  output_.drop_held();
  feed().seek(place.position, std::move(place.ahead));
  output_.arrived(place);
  delivered_epoch_ = place.position.epoch;
}

// ---- the end ------------------------------------------------------------------------------------

void PlanEngine::close_stream() {
  if (cursor_ != nullptr) cursor_->close();
}

void PlanEngine::let_go() {
  if (cursor_ == nullptr) return;
  cursor_->let_go();
  tickets().let_go();
}

}  // namespace penstock
