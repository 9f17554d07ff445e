#include "penstock/pipeline/engine/plan_engine.h"

#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/memory/copy.h"
#include "penstock/pipeline/engine/outcome.h"

namespace penstock {

namespace {

// One worker per lane. They share their scratch memory, because none of them uses it between
// tickets.
class WorkerOfLanes : public TicketRunner {
 public:
  WorkerOfLanes(const std::shared_ptr<const Plan>& plan, ChainWorker::Options options,
                TicketRing& ring,
                const std::function<std::unique_ptr<ChainWorker::Outlet>()>& outlet) {
    add(plan, options, ring, outlet());
    if (ring.lanes() == 1) return;
    options.parallel_map = true;
    for (const auto& parallel_map : plan->parallel_maps())
      add(parallel_map, options, ring, outlet());
  }
  void run(const Ticket& ticket, Slot& slot) override { lanes_[ticket.lane]->run(ticket, slot); }

 private:
  void add(const std::shared_ptr<const Plan>& plan, const ChainWorker::Options& options,
           TicketRing& ring, std::unique_ptr<ChainWorker::Outlet> outlet) {
    lanes_.push_back(
        std::make_unique<ChainWorker>(plan, options, ring, scratch_, std::move(outlet)));
  }

  Scratch scratch_;
  std::vector<std::unique_ptr<ChainWorker>> lanes_;
};

}  // namespace

std::unique_ptr<TicketRunner> worker_of_plan(
    const std::shared_ptr<const Plan>& plan, const ChainWorker::Options& options, TicketRing& ring,
    const std::function<std::unique_ptr<ChainWorker::Outlet>()>& outlet) {
  return std::make_unique<WorkerOfLanes>(plan, options, ring, outlet);
}

PlanEngine::PlanEngine(std::shared_ptr<const Plan> plan, const EngineSettings& settings,
                       const MakeTransport& transport, const MakeTickets& describer)
    : TicketEngine(
          settings_of(*plan, settings), needs_of(*plan, settings),
          [&](Allocator& arena) {
            auto tickets = std::make_unique<PlanTickets>(plan, settings.granule_rows != 0);
            if (describer) tickets->set_describer(describer(arena));
            return tickets;
          },
          [this](Task& task) { transport_->discard(task); }),
      plan_(std::move(plan)),
      transport_(transport(*this)),
      output_(plan_, this->settings().seed, scheduler(), tickets()) {
  if (plan_->stream() != nullptr) make_stream_reader();
}

PlanEngine::~PlanEngine() {
  reader_.reset();  // also drops the elements of its parallel maps
  maps_.reset();
  scheduler().drain();
}

EngineSettings PlanEngine::settings_of(const Plan& plan, EngineSettings settings) {
  // Elements that are scheduled by the chunk and delivered one by one need an ordered feed, because
  // there is only one place.
  if (!plan.batched() && plan.rows_per_ticket() > 1) settings.ordered = true;
  if (plan.stream() != nullptr) {
    settings.ordered = true;
    if (settings.workers == 0) settings.queue = 1;
  }
  return settings;
}

TicketEngine::Needs PlanEngine::needs_of(const Plan& plan, const EngineSettings& settings) {
  const bool streams = plan.stream() != nullptr;
  Needs needs;
  needs.rows = plan.max_rows();
  needs.granule_rows = settings.whole_batches ? plan.max_rows() : settings.granule_rows;
  needs.lanes = ParallelMaps::lanes_for(plan.parallel_maps().size(), settings.workers);
  // Without workers, a stream or a sampler is asked only for the batch that is needed now.
  needs.describe_in_poll_only = settings.workers == 0 && (streams || plan.listed());
  needs.raise = !plan.policies();
  return needs;
}

void PlanEngine::make_stream_reader() {
  const EngineSettings& s = settings();
  StreamReader::Options of{s.queue + s.workers, s.seed, s.retries, s.on_error == OnError::kSkip,
                           s.workers > 0};
  of.attend = [this] { transport_->attend(); };
  if (ring().lanes() > 1) {
    std::vector<Built> made;
    for (const auto& map : plan_->parallel_maps()) made.push_back(map->built());
    maps_ = std::make_unique<ParallelMaps>(std::move(made), ring(), arena(), transport_->results(),
                                           budget(), s.workers);
    of.parallel_maps = maps_.get();
  }
  reader_ = std::make_unique<StreamReader>(plan_, of, arena(), budget(),
                                           [this] { ring().nudge_consumer(); });
  tickets().set_stream_reader(reader_.get(), arena(), 2 * (longest_queue() + s.workers) + 4);
}

std::unique_ptr<TicketRunner> PlanEngine::make_worker(bool in_line) const {
  const EngineSettings& s = settings();
  ChainWorker::Options options{s.seed, s.retries, s.on_error == OnError::kSkip};
  options.in_line = in_line;
  return worker_of_plan(plan_, options, ring(), [this] { return transport_->outlet(); });
}

std::vector<StageSnapshot> PlanEngine::worker_stages() const {
  return stages_of(worker_figures(), plan_->titles());
}

std::vector<StageSnapshot> PlanEngine::stream_stages() const {
  if (reader_ == nullptr) return {};
  return stages_of(figures_of(reader_->stages()), plan_->titles());
}

// ---- taking ------------------------------------------------------------------------------------

PlanEngine::Taken PlanEngine::take_held() {
  auto item = output_.take_held();
  const PlanOutput::Losses lost = output_.take_losses();
  add_losses(lost.losses, lost.epoch);
  if (item) return {std::move(item), std::nullopt};
  return {std::nullopt, output_.take_failure()};
}

PlanEngine::Taken PlanEngine::take() {
  const BatchEntry& entry = scheduler().current();
  const Position at{entry.epoch, entry.base, entry.step};
  const uint32_t worker = ring().task_at(scheduler().current_seq(), 0).worker;
  auto [bytes, losses] =
      output_.gather(ring(), [this](Task& task) { return transport_->losses_in(task); });
  if (reader_ != nullptr) {
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

LoaderFailure PlanEngine::failure_of(Task& task, const Ticket& ticket) {
  LoaderFailure failure{ticket.epoch, ticket.step, 0, {}, task.worker, nullptr};
  std::unique_ptr<Outcome> outcome = take_outcome(task);
  failure.index = outcome->index;
  failure.stage = std::move(outcome->stage);
  failure.error = std::move(outcome->error);
  return failure;
}

LoaderFailure PlanEngine::stream_failure() {
  auto failed = tickets().take_failure();
  if (!failed) throw Error(Code::kInternal, "stream", "a failure without a reason");
  const Position& at = scheduler().position();
  return {at.epoch, at.step, failed->position, failed->stage, 0, failed->error};
}

// ---- passes and places -------------------------------------------------------------------------

uint64_t PlanEngine::pass_of(uint64_t epoch) const {
  return plan_->rounds() == kEndless ? 0 : epoch / plan_->rounds();
}

std::optional<uint64_t> PlanEngine::round(uint64_t epoch) const {
  const uint64_t at = scheduler().position().epoch;
  const uint64_t rounds = plan_->rounds();
  if (at != epoch && pass_of(at) != pass_of(epoch)) return std::nullopt;
  // If rounds are known to be empty, one is enough.
  if ((at != epoch || rounds == kEndless) && plan_->known_length() == uint64_t{0}) {
    return std::nullopt;
  }
  // A whole round had no element. With endless rounds all later rounds would be empty, too.
  if (at > delivered_epoch_ + 1 && rounds == kEndless) return std::nullopt;
  return at;
}

void PlanEngine::leave_round() {
  if (reader_ != nullptr) {
    PlanTickets::Leftover behind = tickets().take_leftover(scheduler().position());
    add_losses(losses_of(behind.losses), behind.epoch);
  }
  for (const auto& cache : plan_->caches()) cache->end_pass();
}

bool PlanEngine::gave_all(uint64_t epoch) const {
  return pass_of(scheduler().position().epoch) != pass_of(epoch) && !output_.has_held();
}

bool PlanEngine::amid() const {
  const uint64_t epoch = output_.position().epoch, rounds = plan_->rounds();
  return (rounds == kEndless ? epoch : epoch % rounds) != 0 || within_round();
}

// Whether a part of the round was delivered.
bool PlanEngine::within_round() const {
  return output_.position().step != 0 || !scheduler().ahead().empty() || output_.has_held();
}

uint64_t PlanEngine::begin_pass(bool resumed, bool failed) {
  delivered_epoch_ = output_.position().epoch;
  if (resumed || !(failed || amid())) return delivered_epoch_;
  const uint64_t epoch = delivered_epoch_, rounds = plan_->rounds();
  if (rounds != kEndless) {
    delivered_epoch_ = epoch - epoch % rounds + rounds;
  } else if (failed || within_round()) {
    delivered_epoch_ = epoch + 1;
  }
  output_.drop_held();
  scheduler().seek({delivered_epoch_, 0, 0});
  return delivered_epoch_;
}

void PlanEngine::restore(const LoaderState& state) {
  PlanOutput::Place place = output_.place_of(state);
  output_.drop_held();
  scheduler().seek(place.position, std::move(place.ahead));
  output_.arrived(place);
  delivered_epoch_ = place.position.epoch;
}

// ---- the end -----------------------------------------------------------------------------------

void PlanEngine::close_stream() {
  if (reader_ != nullptr) reader_->close();
}

void PlanEngine::release() {
  if (reader_ == nullptr) return;
  reader_->release();
  tickets().release();
}

namespace {

// Copies the item's tensors whose memory has other references, because that memory may be
// overwritten (a reused buffer) while the consumer still uses the item. Returns the item's bytes.
uint64_t detach(Example& item, WorkerCounters& counters) {
  uint64_t bytes = 0;
  std::vector<std::pair<std::string, Tensor>> copies;
  for (const auto& [name, tensor] : item) {
    long own = 0;
    for (const auto& other : item) own += other.second.owner() == tensor.owner();
    bytes += tensor.nbytes();
    if (tensor.owner() != nullptr && tensor.owner().use_count() == own) {
      count_avoided_copy(counters, tensor.nbytes());
      continue;
    }
    CopyReason reason = tensor.owner() == nullptr ? CopyReason::kNotOwned : CopyReason::kReferenced;
    count_copy(counters, reason, tensor.nbytes());
    copies.emplace_back(name, tensor.copy());
  }
  for (auto& [name, copy] : copies) item.set(name, std::move(copy));
  return bytes;
}

class LocalOutlet : public ChainWorker::Outlet {
 public:
  void rows(Slot& slot, uint64_t bytes, std::vector<Loss> losses) override {
    std::unique_ptr<Outcome> outcome;
    if (!losses.empty()) {
      outcome = std::make_unique<Outcome>();
      outcome->losses = std::move(losses);
    }
    hand_over(slot, ResultKind::kRows, bytes, std::move(outcome));
  }
  void item(Slot& slot, const Ticket&, void* item, std::vector<Loss> losses) override {
    auto outcome = std::make_unique<Outcome>();
    outcome->batch = std::move(*static_cast<Example*>(item));
    outcome->losses = std::move(losses);
    const uint64_t bytes = detach(outcome->batch, slot.counters());
    slot.counters().bytes.add_single_writer(bytes);
    hand_over(slot, ResultKind::kPacket, bytes, std::move(outcome));
  }
  void fail(Slot& slot, const Ticket&, Failure failure) override {
    auto outcome = std::make_unique<Outcome>();
    outcome->error = std::move(failure.error);
    outcome->index = failure.position;
    outcome->stage = std::move(failure.stage);
    hand_over(slot, ResultKind::kError, 0, std::move(outcome));
  }
  void element(Slot& slot, const Ticket&, uint64_t bytes, ParallelMapResult result) override {
    const ResultKind kind = result.failure ? ResultKind::kError : ResultKind::kRows;
    std::unique_ptr<Outcome> outcome;
    if (result.failure || !result.notes.empty()) {
      outcome = std::make_unique<Outcome>();
      outcome->parallel_map = std::move(result);
    }
    hand_over(slot, kind, bytes, std::move(outcome));
  }
};

}  // namespace

std::unique_ptr<ChainWorker::Outlet> LocalTransport::outlet() {
  return std::make_unique<LocalOutlet>();
}

std::vector<Loss> LocalTransport::losses_in(Task& task) {
  std::unique_ptr<Outcome> outcome = take_outcome(task);
  return outcome == nullptr ? std::vector<Loss>() : std::move(outcome->losses);
}

ParallelMapResult LocalTransport::Results::take(Task& task) {
  std::unique_ptr<Outcome> outcome = take_outcome(task);
  return outcome == nullptr ? ParallelMapResult() : std::move(outcome->parallel_map);
}

}  // namespace penstock
