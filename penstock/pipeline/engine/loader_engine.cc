#include "penstock/pipeline/engine/loader_engine.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/observe/analysis.h"
#include "penstock/pipeline/element/column_block.h"
#include "penstock/pipeline/engine/chain_worker.h"
#include "penstock/pipeline/feed/granules.h"
#include "penstock/pipeline/transformations/split_batch.h"

namespace penstock {
namespace {

Error refuse_loader(const std::string& text) {
  return Error(Code::kInvalidArgument, "Loader", text);
}

void refuse_option(bool given, const char* option, const char* instead) {
  if (given) {
    throw refuse_loader(std::string(option) + " is a Dataset's own business: use " + instead);
  }
}

void refuse_options_of_samples(const LoaderOptions& options) {
  refuse_option(options.batch_size != 0, "batch_size", "Dataset::batch");
  refuse_option(options.shuffle, "shuffle", "Dataset::shuffle");
  refuse_option(options.drop_last, "drop_last", "Dataset::batch({.drop_last = true})");
  refuse_option(options.shard.world != 1, "shard", "Dataset::shard");
  refuse_option(options.on_error == OnError::kReplace, "replace", "Dataset::on_error");
}

// With defaults in place.
LoaderOptions checked(LoaderOptions options) {
  if (!options.workers) options.workers = std::min(os::usable_cores(), kMaxWorkers);
  if (*options.workers > kMaxWorkers) {
    static_assert(kMaxWorkers == kMaxLoaderWorkers);
    throw refuse_loader("workers is " + std::to_string(*options.workers) + "; 256 at most");
  }
  if (!options.max_queue_size) options.max_queue_size = Tuner::Settings().queue;
  if (*options.max_queue_size == 0 || *options.max_queue_size > 1 << 16) {
    throw refuse_loader("max_queue_size is " + std::to_string(*options.max_queue_size) +
                        "; give 1 to 65536");
  }
  if (options.max_bytes == 0) options.max_bytes = LoaderEngine::usual_bytes();
  return options;
}

// Threads that stand in for stuck ones need places of their own.
uint32_t places_of(const LoaderOptions& options) {
  const uint32_t workers = *options.workers;
  if (workers == 0) return 1;
  return options.timeout.count() > 0 ? std::min(2 * workers + 8, kMaxWorkers) : workers;
}

std::string type_name(const std::type_info& type) {
  int status = 0;
  std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), &std::free);
  return name ? name.get() : type.name();
}

}  // namespace

uint64_t LoaderEngine::usual_bytes() { return std::max<uint64_t>(os::memory_limit() / 4, 1 << 20); }

LoaderEngine::Settings LoaderEngine::settings_of(const Plan& plan, LoaderOptions options,
                                                 bool samples) {
  if (!samples) refuse_options_of_samples(options);
  if (plan.queue()) options.max_queue_size = *plan.queue();
  // Elements that go through the feed by the chunk and come out one by one have one place only.
  if (!plan.batched() && plan.rows_per_ticket() > 1) options.ordered = true;
  if (plan.stream() != nullptr) options.ordered = true;
  Settings settings;
  if (options.workers != 0u) {
    // Those that stand in for stuck threads have places behind all others.
    settings.tuning.workers = !options.workers && options.timeout.count() == 0;
    settings.tuning.queue = !samples && !options.max_queue_size;
  }
  settings.options = checked(std::move(options));
  const uint32_t workers = *settings.options.workers;
  settings.lanes = Sections::lanes_for(plan, workers);
  settings.shares = Cursor::shares_of(settings.options.max_bytes, plan.stream() != nullptr,
                                      !settings.lanes.empty());
  settings.longest_queue = workers == 0 ? 1 : *settings.options.max_queue_size;
  if (settings.tuning.queue) {
    settings.longest_queue = std::max(settings.longest_queue, settings.tuning.most_queue);
  }
  return settings;
}

LoaderEngine::LoaderEngine(std::shared_ptr<const Plan> plan, const LoaderOptions& options)
    : LoaderEngine(plan, nullptr, settings_of(*plan, options, false)) {}

LoaderEngine::LoaderEngine(std::shared_ptr<Samples> samples, const LoaderOptions& options)
    : LoaderEngine(std::make_shared<const Plan>(*plan_of_samples(samples, options)), samples,
                   options) {}

LoaderEngine::LoaderEngine(std::shared_ptr<const Plan> plan, std::shared_ptr<Samples> samples,
                           const LoaderOptions& options)
    : LoaderEngine(plan, std::move(samples), settings_of(*plan, options, true)) {}

LoaderEngine::LoaderEngine(std::shared_ptr<const Plan> plan, std::shared_ptr<Samples> samples,
                           const Settings& settings)
    : plan_(std::move(plan)),
      samples_(std::move(samples)),
      options_(settings.options),
      tickets_(std::make_unique<PlanTickets>(plan_)),
      board_([&] {
        Board::Shape of;
        of.granules = most_granules(workers(), plan_->most_rows());
        of.workers = places_of(options_);
        of.rows = plan_->most_rows();
        of.posts = 2 * (settings.longest_queue + workers()) + 2;
        of.inner = settings.lanes;
        return Board::create(of, false);
      }()),
      arena_(std::make_unique<Allocator>(Region::create(Region::Kind::kPrivate))),
      feed_([&] {
        Feed::Options of;
        of.queue = workers() == 0 ? 1 : *options_.max_queue_size;
        of.workers = workers();
        of.max_bytes = settings.shares.feed;
        of.ordered = options_.ordered;
        of.pause_at_epochs = samples_ != nullptr && samples_->source().hooked();
        of.granule_rows = 0;  // batches are divided as need be
        if (settings.tuning.workers || settings.tuning.queue) {
          of.tuning = settings.tuning;
          of.tuning->most_workers = std::max(of.workers, 1u);
          of.tuning->max_bytes = of.max_bytes;
        }
        return std::make_unique<Feed>(*board_, *arena_, *tickets_, of,
                                      [](Unit& unit) { take_outcome(unit); });
      }()),
      output_(plan_, options_.seed, *feed_, *tickets_),
      rows_(*arena_),
      supervisor_(
          options_.timeout.count() > 0 && workers() > 0
              ? std::make_unique<Supervisor>(
                    *board_, *arena_,
                    Supervisor::Policy{options_.on_error == OnError::kRaise && !plan_->policies(),
                                       options_.timeout.count(), 3, false})
              : nullptr),
      crew_(*board_, supervisor_.get()) {
  if (plan_->stream() != nullptr) make_cursor(settings);
}

void LoaderEngine::make_cursor(const Settings& settings) {
  Cursor::Options of{*options_.max_queue_size + workers(), options_.seed, options_.retries,
                     options_.on_error == OnError::kSkip, workers() > 0};
  of.max_bytes = settings.shares.cursor;
  of.all_bytes = settings.shares.all;
  if (board_->lanes() > 1) {
    sections_ = std::make_unique<Sections>(plan_, *board_, *arena_, inlet_,
                                           Sections::Options{workers(), settings.shares.sections});
    of.sections = sections_.get();
  }
  cursor_ = std::make_unique<Cursor>(plan_, of, *arena_, [this] { board_->nudge_consumer(); });
  const uint32_t longest = std::max(*options_.max_queue_size, settings.longest_queue);
  tickets_->set_cursor(cursor_.get(), *arena_, 2 * (longest + workers()) + 4);
}

LoaderEngine::~LoaderEngine() { feed_->drain(); }

// An abandoned thread may be the last that holds the engine: so it is closed by the Loader, and not
// by the destructor.
void LoaderEngine::close() {
  if (arena_->region()->inherited()) return board_->close();  // there are no such threads here
  const bool over = crew_.close(options_.timeout.count() > 0 ? options_.timeout.count() : -1);
  std::unique_lock closing(closing_, std::try_to_lock);
  if (!closing) return;  // whoever closes it meanwhile does the rest
  close_stream();
  if (!over) return;  // a worker closes it, and goes on writing to what is here
  // Whoever iterates at this moment finds the board closed and gives up what it has itself.
  std::unique_lock lock(consumer_, std::try_to_lock);
  if (!lock) return;
  inline_.reset();
  if (cursor_ != nullptr) cursor_->let_go();
  output_.close();
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
  if (workers() == 0) {
    if (inline_ == nullptr) inline_ = make_worker();
    return;
  }
  if (crew_.started()) return;
  if (cursor_ != nullptr && !reading_.joinable()) {
    std::promise<void> over;
    read_ = over.get_future();
    reading_ = std::thread([engine = shared_from_this(), this, over = std::move(over)]() mutable {
      os::block_all_signals();
      cursor_->run();
      over.set_value();
    });
  }
  crew_.start(workers(), [engine = shared_from_this()](uint32_t place) {
    std::unique_ptr<Fulfiller> worker = engine->make_worker();
    serve(*engine->board_, place, *worker, &engine->rows_);
  });
}

uint64_t LoaderEngine::begin_epoch() {
  const auto lock = consume();
  enter();
  const Position at = output_.position();
  const uint64_t pass = plan_->rounds();
  uint64_t into = pass == UINT64_MAX ? at.epoch : at.epoch % pass;
  uint64_t epoch = at.epoch;
  bool amid = into != 0 || at.step != 0 || !feed_->ahead().empty() || output_.anything_held();
  if (amid && !resumed_) {
    leave_epoch();
    output_.drop_held();
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
  const uint64_t pass = plan_->rounds(), at = feed_->position().epoch;
  gave_all = !across && running_ && at / pass != *running_ / pass && !output_.anything_held();
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
        const uint64_t next = *running_ + 1, pass = plan_->rounds();
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
        raise_stream_failure();
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
  if (samples_ != nullptr && samples_->source().hooked() && hooked_ != epoch) {
    leave_epoch();
    settle();
    samples_->source().on_epoch_begin(epoch);
    hooked_ = epoch;
    if (samples_->read_length()) feed_->set_version(++version_);
  }
  running_ = epoch;
  feed_->begin_epoch();
}

void LoaderEngine::leave_epoch() {
  if (cursor_ != nullptr) {  // what was lost behind the last batch
    PlanTickets::Leftover behind = tickets_->take_leftover(feed_->position());
    note(losses_of(behind.losses), behind.epoch);
  }
  for (const auto& cache : plan_->caches()) cache->end_pass();
  if (!hooked_) return;
  settle();
  const uint64_t epoch = *std::exchange(hooked_, std::nullopt);
  samples_->source().on_epoch_end(epoch);
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
  output_.drop_held();
  feed_->seek(at, std::move(ahead));
}

void LoaderEngine::close_stream() {
  if (cursor_ == nullptr) return;
  cursor_->close();
  if (!reading_.joinable()) return;
  const bool own = reading_.get_id() == std::this_thread::get_id();
  const bool waits = !own && options_.timeout.count() > 0;
  // A thread that is stuck in a generator is left to end by itself: it keeps the engine alive.
  const bool stuck = waits && read_.wait_for(options_.timeout) == std::future_status::timeout;
  own || stuck ? reading_.detach() : reading_.join();
}

std::unique_ptr<Fulfiller> LoaderEngine::make_worker() {
  ChainWorker::Options options{options_.seed, options_.retries,
                               options_.on_error == OnError::kSkip};
  return worker_of_plan(plan_, options, *board_, local_outlet);
}

// ---- place --------------------------------------------------------------------------------------

LoaderState LoaderEngine::state() const {
  const auto lock = consume();
  return output_.state();
}

void LoaderEngine::restore(const LoaderState& state) {
  const auto lock = consume();
  check_open();
  PlanOutput::Place place = output_.place_of(state);
  if (hooked_ != state.epoch) hooked_.reset();
  resume_at(place.position, std::move(place.ahead));
  output_.arrived(place);
}

// ---- taking ------------------------------------------------------------------------------------

Example LoaderEngine::example_of(const PlanOutput::Item& item) const {
  if (plan_->parts() != 0) return split_example(item.block, plan_->parts());
  if (!item.row) return item.block.batch();
  return with_columns(item.block.row(*item.row), *item.block.spec());
}

// The batch that poll() found; nothing if all of it was lost.
std::optional<Example> LoaderEngine::take() {
  const uint64_t seq = feed_->current_seq();
  if (output_.apart(*board_)) return std::nullopt;
  if (auto g = feed_->failed_granule()) raise(board_->unit_at(seq, *g), *g);
  if (board_->unit_at(seq, 0).kind == ResultKind::kPacket) return take_item();
  const uint32_t worker = board_->unit_at(seq, 0).worker;
  auto [bytes, losses] = output_.gather(*board_, [this](Unit& unit) {
    auto outcome = take_outcome(unit);
    return outcome ? std::move(outcome->losses) : std::vector<Outcome::Loss>();
  });
  Post& post = feed_->current();
  if (cursor_ != nullptr) {
    auto before = losses_of(tickets_->take_losses({post.epoch, post.base, post.step}));
    losses.insert(losses.end(), std::make_move_iterator(before.begin()),
                  std::make_move_iterator(before.end()));
  }
  auto item = output_.take(bytes, worker, std::move(losses));
  const PlanOutput::Losses lost = output_.take_losses();
  note(lost.losses, lost.epoch);
  if (item) return example_of(*item);
  return take_held();
}

// A whole item, as its data set made it.
std::optional<Example> LoaderEngine::take_item() {
  Unit& unit = board_->unit_at(feed_->current_seq(), 0);
  const uint64_t bytes = unit.bytes;
  std::unique_ptr<Outcome> outcome = take_outcome(unit);
  note(outcome->losses, feed_->current().epoch);
  feed_->deliver(bytes, 1);
  return std::move(outcome->batch);
}

// What is left of what was taken from the feed.
std::optional<Example> LoaderEngine::take_held() {
  auto item = output_.take_held();
  const PlanOutput::Losses lost = output_.take_losses();
  note(lost.losses, lost.epoch);
  if (item) return example_of(*item);
  if (auto failure = output_.take_failure()) raise(std::move(*failure));
  return std::nullopt;
}

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
    const auto row = static_cast<uint32_t>(unit.bytes);
    failure.index = plan_->index_of(ticket.epoch, ticket.base, ticket.step, ticket.begin + row);
    failure.error = std::make_exception_ptr(
        Error(Code::kTimeout, "Loader",
              "index " + std::to_string(failure.index) + " (epoch " + std::to_string(ticket.epoch) +
                  ", batch " + std::to_string(ticket.step) + ", worker " +
                  std::to_string(unit.worker) + ") took longer than " +
                  std::to_string(std::chrono::duration<double>(options_.timeout).count()) + " s"));
  } else if (unit.kind == ResultKind::kBroken) {
    failure.index = plan_->index_of(ticket.epoch, ticket.base, ticket.step, ticket.begin);
    failure.error = std::make_exception_ptr(error_in(unit));
  } else {
    failure.index = plan_->index_of(ticket.epoch, ticket.base, ticket.step, ticket.begin);
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

// The next ticket cannot be made.
void LoaderEngine::raise_stream_failure() {
  auto failed = tickets_->take_failure();
  if (!failed) throw Error(Code::kInternal, "stream", "a failure without a reason");
  const Position& at = feed_->position();
  raise({at.epoch, at.step, failed->position, failed->stage, 0, failed->error});
}

// ---- looking ------------------------------------------------------------------------------------

std::optional<LoaderFailure> LoaderEngine::failure() const {
  std::lock_guard lock(notes_);
  return failure_;
}

std::vector<StageSnapshot> LoaderEngine::worker_stages() const {
  StageFigures sum{};
  for (uint32_t w = 0; w < board_->workers(); ++w) sum += figures_of(board_->place(w).stages);
  return stages_of(sum, plan_->titles());
}

std::vector<StageSnapshot> LoaderEngine::stream_stages() const {
  if (cursor_ == nullptr) return {};
  return stages_of(figures_of(cursor_->stages()), plan_->titles());
}

std::string LoaderEngine::title() const {
  if (samples_ != nullptr) return type_name(samples_->source().type());
  std::string title;
  for (const std::string& stage : plan_->titles()) title += (title.empty() ? "" : " > ") + stage;
  return title;
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
  const uint32_t workers = this->workers();
  Snapshot s;
  s.title = title();
  s.batch_size = plan_->batched() ? plan_->most_rows() : 0;
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
