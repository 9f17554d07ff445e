#include "penstock/pipeline/loader_engine.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/base/os.h"

namespace penstock {
namespace {

Error refuse(const std::string& text) { return Error(Code::kInvalidArgument, "Loader", text); }

Order::Options order_options(const LoaderOptions& o, uint64_t length) {
  return {length,       std::max<uint64_t>(o.batch_size, 1),
          o.shuffle,    o.seed,
          o.drop_last,  o.shard.rank,
          o.shard.world};
}

uint32_t workers_of(const LoaderOptions& options) {
  uint32_t workers = options.workers.value_or(std::min(os::usable_cores(), kMaxWorkers));
  if (workers > kMaxWorkers)
    throw refuse("workers is " + std::to_string(workers) + "; 256 at most");
  return workers;
}

// Rows that a batch will have at most. A dataset may grow at a hook: then its granules do.
uint64_t rows_of(const LoaderOptions& options, uint64_t size) {
  return std::clamp<uint64_t>(options.batch_size, 1, std::max<uint64_t>(size, 1));
}

// Rows of a batch that one worker fills at a time.
uint32_t granule_rows(const LoaderOptions& options, uint32_t workers, uint64_t size) {
  if (options.batch_size > UINT32_MAX) throw refuse("batch_size is above 2^32");
  uint64_t rows = rows_of(options, size);
  uint64_t share = (rows + std::max(workers, 1u) - 1) / std::max(workers, 1u);
  share = std::max(share, std::min<uint64_t>(rows, 8));
  return static_cast<uint32_t>(std::min<uint64_t>(share, kMaxGranuleRows));
}

// Threads that stand in for stuck ones need places of their own.
uint32_t places_of(const LoaderOptions& options, uint32_t workers) {
  if (workers == 0) return 1;
  return options.timeout.count() > 0 ? std::min(2 * workers + 8, kMaxWorkers) : workers;
}

uint64_t default_bytes() { return std::max<uint64_t>(os::memory_limit() / 4, 1 << 20); }

Feed::Options feed_options(const LoaderOptions& o, uint32_t workers, Source& source) {
  if (o.max_queue_size == 0 || o.max_queue_size > 1 << 16) {
    throw refuse("max_queue_size is " + std::to_string(o.max_queue_size) + "; give 1 to 65536");
  }
  Feed::Options options;
  options.queue = workers == 0 ? 1 : o.max_queue_size;
  options.workers = workers;
  options.max_bytes = o.max_bytes != 0 ? o.max_bytes : default_bytes();
  options.ordered = o.ordered;
  options.pause_at_epochs = source.hooked();
  options.granule_rows = granule_rows(o, workers, source.size());
  return options;
}

Board::Shape shape_of(const LoaderOptions& o, const Feed::Options& feed, uint32_t workers,
                      uint64_t size) {
  Board::Shape shape;
  uint64_t rows = rows_of(o, size);
  shape.granules = static_cast<uint32_t>((rows + feed.granule_rows - 1) / feed.granule_rows);
  shape.workers = places_of(o, workers);
  shape.posts = 2 * (feed.queue + feed.workers) + 2;
  return shape;
}

std::string type_name(const std::type_info& type) {
  int status = 0;
  std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), &std::free);
  return name ? name.get() : type.name();
}

}  // namespace

LoaderEngine::LoaderEngine(std::unique_ptr<Source> source, const LoaderOptions& options)
    : options_(options),
      workers_(workers_of(options)),
      source_(std::move(source)),
      board_(Board::create(
          shape_of(options, feed_options(options, workers_, *source_), workers_, source_->size()),
          false)),
      arena_(std::make_unique<Allocator>(Region::create(Region::Kind::kPrivate))),
      rows_(*arena_),
      order_(order_options(options, source_->size())),
      tickets_(order_),
      supervisor_(
          options.timeout.count() > 0 && workers_ > 0
              ? std::make_unique<Supervisor>(*board_, *arena_,
                                             Supervisor::Policy{options.on_error == OnError::kRaise,
                                                                options.timeout.count(), 3, false})
              : nullptr),
      feed_(std::make_unique<Feed>(*board_, *arena_, tickets_,
                                   feed_options(options, workers_, *source_),
                                   [this](Unit& unit) { outcome_of(unit); })),
      crew_(*board_, supervisor_.get()) {
  if (options_.max_bytes == 0) options_.max_bytes = default_bytes();
}

LoaderEngine::~LoaderEngine() { feed_->drain(); }

// An abandoned thread may be the last that holds the engine: so it is closed by the Loader, and not
// by the destructor.
void LoaderEngine::close() {
  crew_.close(options_.timeout.count() > 0 ? options_.timeout.count() : -1);
  // Whoever iterates at this moment finds the board closed and gives up what it has itself.
  std::unique_lock lock(consumer_, std::try_to_lock);
  if (lock) feed_->drain();
}

Order LoaderEngine::order() const {
  std::lock_guard lock(order_mutex_);
  return order_;
}

// ---- iterating ---------------------------------------------------------------------------------

void LoaderEngine::check_open() const {
  if (!board_->closed()) return;
  if (auto fatal = crew_.fatal()) std::rethrow_exception(fatal);
  throw Error(Code::kClosed, "Loader", "the loader was closed");
}

void LoaderEngine::enter() {
  check_open();
  if (workers_ == 0) {
    if (inline_ == nullptr) {
      LoaderWorker::Plan plan{options_.batch_size != 0, options_.on_error, options_.retries};
      const LoaderWorker::Orders& orders = *this;
      inline_ = std::make_unique<LoaderWorker>(plan, *source_, orders, *board_);
    }
    return;
  }
  if (crew_.started()) return;
  crew_.start(workers_, [engine = shared_from_this()](uint32_t place) {
    LoaderWorker::Plan plan{engine->options_.batch_size != 0, engine->options_.on_error,
                            engine->options_.retries};
    const LoaderWorker::Orders& orders = *engine;
    LoaderWorker worker(plan, *engine->source_, orders, *engine->board_);
    serve(*engine->board_, place, worker, &engine->rows_);
  });
}

uint64_t LoaderEngine::begin_epoch() {
  std::lock_guard lock(consumer_);
  enter();
  uint64_t epoch = feed_->position().epoch;
  if ((feed_->position().step != 0 || !feed_->ahead().empty()) && !resumed_) {
    leave_epoch();
    feed_->seek({++epoch, 0, 0});
  }
  resumed_ = false;
  enter_epoch(epoch);
  return ++serial_;
}

uint64_t LoaderEngine::begin_steps() {
  std::lock_guard lock(consumer_);
  enter();
  resumed_ = true;
  enter_epoch(feed_->position().epoch);
  return ++serial_;
}

std::optional<Example> LoaderEngine::next() {
  std::lock_guard lock(consumer_);
  return take_next();
}

std::optional<Example> LoaderEngine::next_of(uint64_t serial, bool across) {
  std::lock_guard lock(consumer_);
  if (serial != serial_) return std::nullopt;
  auto batch = take_next();
  if (batch || !across) return batch;
  batch = take_next();
  if (!batch) throw refuse("the dataset is empty: it gave no batch");
  return batch;
}

std::optional<Example> LoaderEngine::take_next() {
  enter();
  if (!running_) enter_epoch(feed_->position().epoch);
  for (;;) {
    check_open();
    switch (feed_->poll(*running_)) {
      case Feed::Poll::kEpochEnd:
        running_.reset();
        leave_epoch();
        return std::nullopt;
      case Feed::Poll::kBatch:
        if (auto batch = take()) return batch;
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

// ---- epochs -------------------------------------------------------------------------------------

void LoaderEngine::enter_epoch(uint64_t epoch) {
  if (source_->hooked() && open_epoch_ != epoch) {
    leave_epoch();
    settle();
    source_->on_epoch_begin(epoch);
    open_epoch_ = epoch;
    uint64_t length = source_->size();
    if (length != order_.options().length) {
      std::lock_guard lock(order_mutex_);
      order_ = Order(order_options(options_, length));
      tickets_.set_order(order_);
      feed_->set_version(++version_);
    }
  }
  running_ = epoch;
  feed_->begin_epoch();
}

void LoaderEngine::leave_epoch() {
  if (!open_epoch_) return;
  settle();
  uint64_t epoch = *std::exchange(open_epoch_, std::nullopt);
  source_->on_epoch_end(epoch);
}

// Hooks change the dataset: nobody may be in its get(), not even for a ticket that was taken back.
void LoaderEngine::settle() {
  feed_->seek(feed_->position(), feed_->ahead());
  while (!feed_->settle(-1)) check_open();
}

// ---- place --------------------------------------------------------------------------------------

uint64_t LoaderEngine::steps() const { return order().steps(); }

LoaderState LoaderEngine::state() const {
  std::lock_guard lock(consumer_);
  const Position& at = feed_->position();
  const auto& [rank, world] = options_.shard;
  LoaderState state{at.epoch,
                    at.base + at.step * world,
                    {},
                    options_.seed,
                    options_.shuffle,
                    options_.batch_size,
                    order_.options().length};
  for (uint64_t step : feed_->ahead()) state.ahead.push_back(at.base + step * world + rank);
  return state;
}

void LoaderEngine::restore(const LoaderState& state) {
  std::lock_guard lock(consumer_);
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
  std::set<uint64_t> ahead;
  for (uint64_t batch : state.ahead) {
    uint64_t first = state.batches + rank;
    if (batch < first || (batch - first) % world != 0) {
      throw Error(Code::kInvalidArgument, "restore",
                  "a state of an unordered feed restores at its own shard only");
    }
    ahead.insert((batch - first) / world);
  }
  ++serial_;
  running_.reset();
  resumed_ = true;
  if (open_epoch_ != state.epoch) open_epoch_.reset();
  feed_->seek({state.epoch, state.batches, 0}, std::move(ahead));
}

// ---- looking ------------------------------------------------------------------------------------

std::optional<LoaderFailure> LoaderEngine::failure() const {
  std::lock_guard lock(notes_);
  return failure_;
}

LoaderStats LoaderEngine::stats() const {
  LoaderStats stats{figures_of(board_->consumer()), {}, {}};
  for (uint32_t w = 0; w < board_->workers(); ++w) {
    stats.workers += figures_of(board_->place(w).counters);
  }
  std::lock_guard lock(notes_);
  stats.losses = losses_;
  return stats;
}

Snapshot LoaderEngine::snapshot() const {
  Snapshot s;
  s.title = type_name(source_->type());
  s.mode = workers_ == 0 ? "inline" : "threads";
  s.batch_size = options_.batch_size;
  s.queue_size = options_.max_queue_size;
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
    worker.kind = workers_ == 0 ? "inline" : "thread";
    worker.figures = figures_of(place.counters);
    worker.trace = events_of(place.trace);
    if (w < workers_ || worker.figures.tickets != 0) s.workers.push_back(std::move(worker));
  }
  s.depth = feed_->depths().read();
  std::lock_guard lock(notes_);
  s.losses = losses_;
  return s;
}

}  // namespace penstock
