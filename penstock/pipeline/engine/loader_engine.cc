#include "penstock/pipeline/engine/loader_engine.h"

#include <algorithm>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/observe/analysis.h"
#include "penstock/pipeline/feed/granules.h"

namespace penstock {
namespace {

Error refuse_loader(const std::string& text) {
  return Error(Code::kInvalidArgument, "Loader", text);
}

// Threads that stand in for stuck ones need places of their own.
uint32_t places_of(const LoaderOptions& options, uint32_t workers) {
  if (workers == 0) return 1;
  return options.timeout.count() > 0 ? std::min(2 * workers + 8, kMaxWorkers) : workers;
}

}  // namespace

LoaderOptions LoaderEngine::checked(LoaderOptions options) {
  if (!options.workers) options.workers = std::min(os::usable_cores(), kMaxWorkers);
  if (*options.workers > kMaxWorkers) {
    static_assert(kMaxWorkers == kMostWorkers);
    throw refuse_loader("workers is " + std::to_string(*options.workers) + "; 256 at most");
  }
  if (!options.max_queue_size) options.max_queue_size = Tuner::Settings().queue;
  if (*options.max_queue_size == 0 || *options.max_queue_size > 1 << 16) {
    throw refuse_loader("max_queue_size is " + std::to_string(*options.max_queue_size) +
                        "; give 1 to 65536");
  }
  if (options.max_bytes == 0) options.max_bytes = usual_bytes();
  return options;
}

uint64_t LoaderEngine::usual_bytes() { return std::max<uint64_t>(os::memory_limit() / 4, 1 << 20); }

Tuner::Limits LoaderEngine::tuning_of(const LoaderOptions& options, bool queue) {
  Tuner::Limits limits;
  if (options.workers == 0u) return limits;
  // Those that stand in for stuck threads have places behind all others.
  limits.workers = !options.workers && options.timeout.count() == 0;
  limits.queue = queue && !options.max_queue_size;
  return limits;
}

LoaderEngine::LoaderEngine(Shape shape, const LoaderOptions& options)
    : options_(options),
      tickets_(std::move(shape.tickets)),
      board_([&] {
        Board::Shape of;
        const uint64_t share = shape.granule_rows;
        of.granules = share == 0 ? most_granules(workers_of(options), shape.rows)
                                 : static_cast<uint32_t>((shape.rows + share - 1) / share);
        of.workers = places_of(options, workers_of(options));
        of.rows = static_cast<uint32_t>(share == 0 ? shape.rows : share);
        uint32_t queue = workers_of(options) == 0 ? 1 : *options.max_queue_size;
        if (shape.tuning.queue) queue = std::max(queue, shape.tuning.most_queue);
        of.posts = 2 * (queue + workers_of(options)) + 2;
        of.inner = shape.lanes;
        return Board::create(of, false);
      }()),
      arena_(std::make_unique<Allocator>(Region::create(Region::Kind::kPrivate))),
      feed_([&] {
        Feed::Options of;
        of.queue = workers_of(options) == 0 ? 1 : *options.max_queue_size;
        of.workers = workers_of(options);
        of.max_bytes = shape.max_bytes.value_or(options.max_bytes);
        of.ordered = options.ordered;
        of.pause_at_epochs = shape.pause_at_epochs;
        of.granule_rows = shape.granule_rows;
        if (shape.tuning.workers || shape.tuning.queue) {
          of.tuning = shape.tuning;
          of.tuning->most_workers = std::max(of.workers, 1u);
          of.tuning->max_bytes = of.max_bytes;
        }
        return std::make_unique<Feed>(*board_, *arena_, *tickets_, of,
                                      [this](Unit& unit) { take_outcome(unit); });
      }()),
      rows_(*arena_),
      supervisor_(
          options.timeout.count() > 0 && workers_of(options) > 0
              ? std::make_unique<Supervisor>(
                    *board_, *arena_,
                    Supervisor::Policy{options.on_error == OnError::kRaise && !shape.policies,
                                       options.timeout.count(), 3, false})
              : nullptr),
      crew_(*board_, supervisor_.get()) {}

LoaderEngine::~LoaderEngine() { feed_->drain(); }

// An abandoned thread may be the last that holds the engine: so it is closed by the Loader, and not
// by the destructor.
void LoaderEngine::close() {
  if (arena_->region()->inherited()) return board_->close();  // there are no such threads here
  const bool over = crew_.close(options_.timeout.count() > 0 ? options_.timeout.count() : -1);
  std::unique_lock closing(closing_, std::try_to_lock);
  if (!closing) return;  // whoever closes it meanwhile does the rest
  close_others();
  if (!over) return;  // a worker closes it, and goes on writing to what is here
  // Whoever iterates at this moment finds the board closed and gives up what it has itself.
  std::unique_lock lock(consumer_, std::try_to_lock);
  if (!lock) return;
  inline_.reset();
  let_go_of_others();
  close_held();
  feed_->drain();
}

// ---- iterating ---------------------------------------------------------------------------------

void LoaderEngine::check_ours() const {
  if (arena_->region()->inherited()) {
    throw refuse_loader(
        "this process was forked from the one that made the loader: iterate there, or make one "
        "here");
  }
}

std::unique_lock<std::mutex> LoaderEngine::consume() const {
  check_ours();
  return std::unique_lock(consumer_);
}

void LoaderEngine::check_open() const {
  check_ours();
  if (!board_->closed()) return;
  if (auto fatal = crew_.fatal()) std::rethrow_exception(fatal);
  throw Error(Code::kClosed, "Loader", "the loader was closed");
}

void LoaderEngine::enter() {
  check_open();
  if (workers_of(options_) == 0) {
    if (inline_ == nullptr) inline_ = make_worker();
    return;
  }
  if (crew_.started()) return;
  start_others();
  crew_.start(workers_of(options_), [engine = shared_from_this()](uint32_t place) {
    std::unique_ptr<Fulfiller> worker = engine->make_worker();
    serve(*engine->board_, place, *worker, &engine->rows_);
  });
}

uint64_t LoaderEngine::begin_epoch() {
  const auto lock = consume();
  enter();
  const Position at = position();
  const uint64_t pass = epochs_per_pass();
  uint64_t into = pass == UINT64_MAX ? at.epoch : at.epoch % pass;
  uint64_t epoch = at.epoch;
  bool amid = into != 0 || at.step != 0 || !feed_->ahead().empty() || anything_held();
  if (amid && !resumed_) {
    leave_epoch();
    drop_held();
    // A pass without an end is begun anew.
    epoch = pass == UINT64_MAX ? epoch + 1 : epoch - into + pass;
    feed_->seek({epoch, 0, 0});
  }
  resumed_ = false;
  enter_epoch(epoch);
  return latest_ = ++serial_;
}

uint64_t LoaderEngine::begin_steps() {
  const auto lock = consume();
  enter();
  resumed_ = true;
  enter_epoch(feed_->position().epoch);
  return latest_ = ++serial_;
}

std::optional<Example> LoaderEngine::next() {
  const auto lock = consume();
  return take_next();
}

std::optional<Example> LoaderEngine::next_of(uint64_t serial, bool across, bool& gave_all) {
  const auto lock = consume();
  if (serial < latest_ && !gave_all) {
    throw refuse_loader(
        "this iteration was overtaken: a later one was begun before its end. A Loader has one "
        "place, so the batches that are missing here are the later one's, or were left out; "
        "iterations side by side need a Loader each");
  }
  if (serial != serial_) return std::nullopt;
  auto batch = take_next();
  if (!batch && across) {
    batch = take_next();
    if (!batch) throw refuse_loader("the dataset is empty: it gave no batch");
  }
  const uint64_t pass = epochs_per_pass(), at = feed_->position().epoch;
  gave_all = !across && running_ && at / pass != *running_ / pass && !anything_held();
  return batch;
}

std::optional<Example> LoaderEngine::take_next() {
  enter();
  if (auto held = take_held()) return held;
  if (!running_) enter_epoch(feed_->position().epoch);
  for (;;) {
    check_open();
    switch (feed_->poll(*running_)) {
      case Feed::Poll::kEpochEnd: {
        const uint64_t next = *running_ + 1, pass = epochs_per_pass();
        running_.reset();
        leave_epoch();
        bool over = pass != UINT64_MAX && next % pass == 0;
        // Of rounds without end that give nothing the next ones will not either.
        if (over || steps() == 0) return std::nullopt;
        if (++empty_ > 1 && pass == UINT64_MAX) return std::nullopt;
        enter_epoch(next);
        break;
      }
      case Feed::Poll::kFailed:
        raise_failed();
        break;
      case Feed::Poll::kBatch:
        if (auto batch = take()) {
          empty_ = 0;
          return batch;
        }
        break;  // all of it was skipped
      case Feed::Poll::kWait:
        if (inline_ == nullptr) {
          feed_->wait(-1);
        } else if (auto seq = feed_->next_open()) {
          serve_post(*board_, 0, *seq, *inline_, &rows_);
        }
        break;
    }
  }
}

void LoaderEngine::enter_epoch(uint64_t epoch) {
  running_ = epoch;
  feed_->begin_epoch();
}

// Not even for a ticket that was taken back: the dataset is about to be changed.
void LoaderEngine::settle() {
  feed_->seek(feed_->position(), feed_->ahead());
  while (!feed_->settle(-1)) check_open();
}

void LoaderEngine::resume_at(const Position& at, std::set<uint64_t> ahead) {
  ++serial_;
  running_.reset();
  resumed_ = true;
  drop_held();
  feed_->seek(at, std::move(ahead));
}

// ---- taking ------------------------------------------------------------------------------------

void LoaderEngine::note(const std::vector<Outcome::Loss>& losses, uint64_t epoch) {
  ConsumerCounters& counters = board_->consumer();
  std::lock_guard lock(notes_);
  for (const Outcome::Loss& loss : losses) {
    if (loss.error != nullptr) continue;  // it is raised, not lost
    (loss.replaced ? counters.replaced : counters.skipped).add_single_writer();
    losses_.push_back({epoch, loss.index, loss.reason});
  }
}

void LoaderEngine::raise(Unit& unit, uint32_t granule) {
  Ticket ticket = ticket_of(board_->claim_in(feed_->current_seq(), granule, 0));
  LoaderFailure failure{ticket.epoch, ticket.step, 0, {}, unit.worker, nullptr};
  if (unit.kind == ResultKind::kError) {
    std::unique_ptr<Outcome> outcome = take_outcome(unit);
    failure.index = outcome->index;
    failure.stage = outcome->stage;
    failure.error = outcome->error;
  } else if (unit.kind == ResultKind::kTimeout) {
    failure.index = index_of(ticket, static_cast<uint32_t>(unit.bytes));
    failure.error = std::make_exception_ptr(
        Error(Code::kTimeout, "Loader",
              "index " + std::to_string(failure.index) + " (epoch " + std::to_string(ticket.epoch) +
                  ", batch " + std::to_string(ticket.step) + ", worker " +
                  std::to_string(unit.worker) + ") took longer than " +
                  std::to_string(std::chrono::duration<double>(options_.timeout).count()) + " s"));
  } else {
    failure.index = index_of(ticket, 0);
    std::string text(reinterpret_cast<const char*>(unit.packet), unit.length);
    failure.error = std::make_exception_ptr(Error(Code::kOutOfMemory, "Loader", text));
  }
  raise(std::move(failure));
}

void LoaderEngine::raise(LoaderFailure failure) {
  {
    std::lock_guard lock(notes_);
    failure_ = failure;
  }
  running_.reset();
  feed_->fail();
  std::rethrow_exception(failure.error);
}

// ---- looking ------------------------------------------------------------------------------------

std::optional<LoaderFailure> LoaderEngine::failure() const {
  std::lock_guard lock(notes_);
  return failure_;
}

std::vector<StageSnapshot> LoaderEngine::worker_stages() const {
  StageFigures sum{};
  for (uint32_t w = 0; w < board_->workers(); ++w) sum += figures_of(board_->place(w).stages);
  return stages_of(sum, stages());
}

LoaderStats LoaderEngine::stats() const {
  LoaderStats stats{figures_of(board_->consumer()),
                    {},
                    worker_stages(),
                    stream_stages(),
                    board_->active(),
                    feed_->queue(),
                    {}};
  for (uint32_t w = 0; w < board_->workers(); ++w) {
    stats.workers += board_->figures(w);
  }
  std::lock_guard lock(notes_);
  stats.losses = losses_;
  return stats;
}

Snapshot LoaderEngine::snapshot() const {
  const uint32_t workers = workers_of(options_);
  Snapshot s;
  describe(s);
  s.mode = workers == 0 ? "inline" : "threads";
  s.queue_size = feed_->queue();
  s.active_workers = board_->active();
  s.max_bytes = options_.max_bytes;
  s.cores = os::usable_cores();
  s.facts = {{"order", options_.ordered ? "in order" : "as they come"}};
  s.taken_ns = now_ns();
  s.consumer = figures_of(board_->consumer());
  s.consumer_trace = events_of(board_->consumer_trace());
  for (uint32_t w = 0; w < board_->workers(); ++w) {
    WorkerPlace& place = board_->place(w);
    WorkerSnapshot worker;
    worker.name = "worker " + std::to_string(w);
    worker.kind = workers == 0 ? "inline" : "thread";
    worker.figures = board_->figures(w);
    worker.trace = events_of(place.trace);
    if (w < workers || worker.figures.tickets != 0) s.workers.push_back(std::move(worker));
  }
  s.stages = worker_stages();
  s.stream_stages = stream_stages();
  s.depth = feed_->depths().read();
  std::lock_guard lock(notes_);
  s.losses = losses_;
  return s;
}

}  // namespace penstock
