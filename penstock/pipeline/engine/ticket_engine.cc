#include "penstock/pipeline/engine/ticket_engine.h"

#include <algorithm>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/os.h"
#include "penstock/pipeline/scheduler/window.h"

namespace penstock {
namespace {

bool tunes_queue(const EngineSettings& settings) {
  return settings.workers > 0 && settings.tune_queue;
}

}  // namespace

TicketEngine::TicketEngine(const EngineSettings& settings, const Needs& needs,
                           const MakeTickets& tickets, std::function<void(Task&)> discard)
    : settings_(settings),
      longest_queue_(tunes_queue(settings) ? std::max(settings.queue, Tuner::Limits().max_queue)
                                           : settings.queue),
      ring_(TicketRing::create(shape_of(needs), settings.processes)),
      arena_(std::make_unique<Allocator>(
          Region::create(settings.processes || settings.shared_memory ? Region::Kind::kShared
                                                                      : Region::Kind::kPrivate),
          Allocator::Options{.soft_limit = settings.max_bytes})),
      budget_(settings.max_bytes),
      memory_(*arena_),
      tickets_(tickets(*arena_)),
      supervisor_(
          settings.supervised
              ? std::make_unique<Supervisor>(
                    *ring_, *arena_,
                    Supervisor::Policy{.raise = settings.on_error == OnError::kRaise && needs.raise,
                                       .timeout_ns = settings.timeout_ns,
                                       .processes = settings.processes})
              : nullptr),
      scheduler_(*ring_, *arena_, *tickets_, budget_, options_of(needs), std::move(discard)) {}

TicketRing::Shape TicketEngine::shape_of(const Needs& needs) const {
  TicketRing::Shape shape;
  const uint32_t share = needs.granule_rows;
  shape.granules =
      share == 0 ? max_granules(settings_.workers, needs.rows) : (needs.rows + share - 1) / share;
  shape.workers = std::max(settings_.places, 1u);
  shape.rows = share == 0 ? needs.rows : share;
  shape.entries = 2 * (longest_queue_ + settings_.workers) + 2;
  shape.inner = needs.lanes;
  return shape;
}

Scheduler::Options TicketEngine::options_of(const Needs& needs) const {
  Scheduler::Options options;
  options.workers = settings_.workers;
  options.queue = settings_.queue;
  options.ordered = settings_.ordered;
  options.pause_at_epochs = settings_.pause_at_epochs;
  options.granule_rows = needs.granule_rows;
  options.describe_in_poll_only = needs.describe_in_poll_only;
  Tuner::Limits tuning;
  tuning.workers = settings_.tune_workers;
  tuning.queue = settings_.tune_queue;
  if (options.workers > 0 && (tuning.workers || tuning.queue)) {
    tuning.max_workers = options.workers;
    tuning.max_bytes = settings_.max_bytes;
    options.tuning = tuning;
  }
  return options;
}

void TicketEngine::add_losses(const std::vector<Loss>& losses, uint64_t epoch) {
  ConsumerCounters& counters = ring_->consumer();
  for (const Loss& loss : losses) {
    if (loss.error != nullptr) continue;
    (loss.replaced ? counters.replaced : counters.skipped).add_single_writer();
    std::lock_guard lock(mutex_);
    losses_.push_back({epoch, loss.index, loss.reason});
  }
}

std::vector<LostItem> TicketEngine::losses() const {
  std::lock_guard lock(mutex_);
  return losses_;
}

StageFigures TicketEngine::worker_figures() const {
  StageFigures sum{};
  for (uint32_t w = 0; w < ring_->workers(); ++w) sum += figures_of(ring_->place(w).stages);
  return sum;
}

Snapshot TicketEngine::snapshot(uint32_t workers, const std::string& kind) const {
  Snapshot s;
  s.queue_size = scheduler_.queue();
  s.active_workers = ring_->sleepers().active();
  s.max_bytes = settings_.max_bytes;
  s.cores = os::usable_cores();
  s.taken_ns = now_ns();
  s.consumer = figures_of(ring_->consumer());
  s.consumer_trace = events_of(ring_->consumer_trace());
  for (uint32_t w = 0; w < ring_->workers(); ++w) {
    WorkerPlace& place = ring_->place(w);
    WorkerSnapshot worker;
    worker.name = "worker " + std::to_string(w);
    worker.kind = kind;
    worker.pid = place.pid.load();
    worker.figures = ring_->figures(w);
    worker.trace = events_of(place.trace);
    if (w < workers || worker.figures.tickets != 0) s.workers.push_back(std::move(worker));
  }
  s.depth = scheduler_.depths().read();
  s.losses = losses();
  return s;
}

}  // namespace penstock
