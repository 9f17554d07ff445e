#include "penstock/pipeline/engine/loader_engine.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/observe/analysis.h"
#include "penstock/pipeline/element/block.h"
#include "penstock/pipeline/engine/plan_engine.h"
#include "penstock/pipeline/stages/split_batch.h"

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

uint32_t places_of(const LoaderOptions& options) {
  const uint32_t workers = *options.workers;
  if (workers == 0) return 1;
  return options.timeout.count() > 0 ? ThreadPlaces::needed(workers) : workers;
}

std::string type_name(const std::type_info& type) {
  int status = 0;
  std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), &std::free);
  return name ? name.get() : type.name();
}

EngineSettings settings_of(const Plan& plan, LoaderOptions options, const Samples* samples) {
  if (samples == nullptr) refuse_options_of_samples(options);
  if (plan.queue()) options.max_queue_size = *plan.queue();
  EngineSettings settings;
  // Replacements of stuck threads use the places after all others.
  settings.tune_workers = !options.workers && options.timeout.count() == 0;
  settings.tune_queue = samples == nullptr && !options.max_queue_size;
  options = checked(std::move(options));
  settings.seed = options.seed;
  settings.retries = options.retries;
  settings.on_error = options.on_error;
  settings.workers = *options.workers;
  settings.places = places_of(options);
  settings.queue = settings.workers == 0 ? 1 : *options.max_queue_size;
  settings.max_bytes = options.max_bytes;
  settings.ordered = options.ordered;
  settings.pause_at_epochs = samples != nullptr && samples->source().hooked();
  settings.supervised = options.timeout.count() > 0 && settings.workers > 0;
  if (options.timeout.count() > 0) settings.timeout_ns = options.timeout.count();
  return settings;
}

}  // namespace

uint64_t LoaderEngine::usual_bytes() { return std::max<uint64_t>(os::memory_limit() / 4, 1 << 20); }

LoaderEngine::LoaderEngine(std::shared_ptr<const Plan> plan, const LoaderOptions& options)
    : LoaderEngine(plan, nullptr, settings_of(*plan, options, nullptr)) {}

LoaderEngine::LoaderEngine(std::shared_ptr<Samples> samples, const LoaderOptions& options)
    : LoaderEngine(std::make_shared<const Plan>(*plan_of_samples(samples, options)), samples,
                   options) {}

LoaderEngine::LoaderEngine(std::shared_ptr<const Plan> plan, std::shared_ptr<Samples> samples,
                           const LoaderOptions& options)
    : LoaderEngine(plan, samples, settings_of(*plan, options, samples.get())) {}

LoaderEngine::LoaderEngine(std::shared_ptr<const Plan> plan, std::shared_ptr<Samples> samples,
                           const EngineSettings& settings)
    : samples_(std::move(samples)),
      engine_(std::move(plan), settings,
              [](TicketEngine&) { return std::make_unique<LocalTransport>(); }),
      pool_(engine_.ring(), engine_.supervisor()),
      consumer_(engine_, *this) {}

// Called by the Loader and not by the destructor, because an abandoned thread may hold the engine
// last.
void LoaderEngine::close() {
  if (engine_.inherited()) return engine_.ring().close();  // a forked child has no worker threads
  const bool over = pool_.close(engine_.settings().timeout_ns);
  std::unique_lock closing(closing_, std::try_to_lock);
  if (!closing) return;  // another thread is closing it
  close_stream();
  if (!over) return;  // called by a worker, which continues to use the engine
  // A thread that iterates at this moment finds the ring closed and releases its batch itself.
  std::unique_lock lock(consuming_, std::try_to_lock);
  if (!lock) return;
  consumer_.drop_worker();
  engine_.release();
  engine_.close_output();
  engine_.scheduler().drain();
}

// ---- iterating ---------------------------------------------------------------------------------

void LoaderEngine::check_ours() const {
  if (engine_.inherited()) {
    throw refuse_loader(
        "this process was forked from the one that made the loader: iterate there, or make one "
        "here");
  }
}

std::unique_lock<std::mutex> LoaderEngine::consume() const {
  check_ours();
  return std::unique_lock(consuming_);
}

void LoaderEngine::check_open() {
  check_ours();
  if (!closed()) return;
  if (auto fatal = pool_.fatal()) std::rethrow_exception(fatal);
  throw Error(Code::kClosed, "Loader", "the loader was closed");
}

void LoaderEngine::enter() {
  check_open();
  if (workers() == 0) {
    if (!consumer_.works_in_line()) consumer_.work_in_line(engine_.make_worker(false));
    return;
  }
  if (pool_.started()) return;
  if (engine_.has_stream_reader() && !reading_.joinable()) {
    std::promise<void> over;
    read_ = over.get_future();
    reading_ = std::thread([self = shared_from_this(), over = std::move(over)]() mutable {
      os::block_all_signals();
      self->engine_.run_stream_reader();
      over.set_value();
    });
  }
  pool_.start(workers(), [self = shared_from_this()](uint32_t place) {
    std::unique_ptr<TicketRunner> worker = self->engine_.make_worker(false);
    serve(self->engine_.ring(), place, *worker, &self->engine_.memory());
  });
}

uint64_t LoaderEngine::begin_epoch() {
  const auto lock = consume();
  enter();
  enter_epoch(consumer_.begin_pass(std::exchange(resumed_, false)));
  return consumer_.begin_iteration();
}

uint64_t LoaderEngine::begin_steps() {
  const auto lock = consume();
  enter();
  resumed_ = true;
  enter_epoch(engine_.scheduler().position().epoch);
  return consumer_.begin_iteration();
}

std::optional<Example> LoaderEngine::next() {
  const auto lock = consume();
  return take_next();
}

std::optional<Example> LoaderEngine::next_of(uint64_t serial, bool across, bool& gave_all) {
  const auto lock = consume();
  if (gave_all ? !consumer_.is_current(serial) : !consumer_.check_iteration(serial)) {
    return std::nullopt;
  }
  auto batch = take_next();
  if (!batch && across) {
    batch = take_next();
    if (!batch) throw refuse_loader("the dataset is empty: it gave no batch");
  }
  gave_all = !across && consumer_.round() && engine_.gave_all(*consumer_.round());
  return batch;
}

std::optional<Example> LoaderEngine::take_next() {
  enter();
  if (!consumer_.round()) enter_epoch(engine_.scheduler().position().epoch);
  if (consumer_.next()) return std::exchange(batch_, std::nullopt);
  end_epoch();
  return std::nullopt;
}

void LoaderEngine::enter_epoch(uint64_t epoch) {
  if (samples_ != nullptr && samples_->source().hooked() && hooked_ != epoch) {
    end_epoch();
    settle();
    samples_->source().on_epoch_begin(epoch);
    hooked_ = epoch;
    if (samples_->refresh_length()) engine_.length_changed(++version_);
  }
  consumer_.enter_round(epoch);
}

void LoaderEngine::end_epoch() {
  if (!hooked_) return;
  settle();
  const uint64_t epoch = *std::exchange(hooked_, std::nullopt);
  samples_->source().on_epoch_end(epoch);
}

// Also waits for withdrawn tickets, because the dataset is about to change.
void LoaderEngine::settle() {
  Scheduler& scheduler = engine_.scheduler();
  scheduler.seek(scheduler.position(), scheduler.ahead());
  while (!scheduler.settle(-1)) check_open();
}

void LoaderEngine::close_stream() {
  engine_.close_stream();
  if (!reading_.joinable()) return;
  const bool own = reading_.get_id() == std::this_thread::get_id();
  const std::chrono::nanoseconds timeout(engine_.settings().timeout_ns);
  const bool waits = !own && timeout.count() > 0;
  // A thread that is stuck in a generator is not waited for: it keeps the engine alive.
  const bool stuck = waits && read_.wait_for(timeout) == std::future_status::timeout;
  own || stuck ? reading_.detach() : reading_.join();
}

// ---- place -------------------------------------------------------------------------------------

LoaderState LoaderEngine::state() const {
  const auto lock = consume();
  return engine_.state();
}

void LoaderEngine::restore(const LoaderState& state) {
  const auto lock = consume();
  check_open();
  consumer_.restore(state);
  if (hooked_ != state.epoch) hooked_.reset();
  resumed_ = true;
}

// ---- taking ------------------------------------------------------------------------------------

void LoaderEngine::hand_out(const PlanOutput::Item& item) {
  if (item.row) {
    batch_ = expand_columns(item.elements->row(*item.row), *item.elements->spec());
    return;
  }
  const Block block = item.batch();
  const uint32_t parts = engine_.plan().parts();
  batch_ = parts != 0 ? split_example(block, parts) : block.batch();
}

bool LoaderEngine::take() {
  Scheduler& scheduler = engine_.scheduler();
  Task& task = engine_.ring().task_at(scheduler.current_seq(), 0);
  if (task.kind != ResultKind::kPacket) return consumer_.hand_out(engine_.take());
  // A whole item, as the data set returned it.
  const uint64_t bytes = task.bytes;
  std::unique_ptr<Outcome> outcome = take_outcome(task);
  engine_.add_losses(outcome->losses, scheduler.current().epoch);
  scheduler.deliver(bytes, 1);
  batch_ = std::move(outcome->batch);
  return true;
}

void LoaderEngine::raise(Task& task, const Ticket& ticket) {
  if (task.kind == ResultKind::kError) raise(PlanEngine::failure_of(task, ticket));
  LoaderFailure failure{ticket.epoch, ticket.step, 0, {}, task.worker, nullptr};
  const Plan& plan = engine_.plan();
  if (task.kind == ResultKind::kTimeout) {
    const auto row = static_cast<uint32_t>(task.bytes);
    failure.index = plan.index_of(ticket.epoch, ticket.base, ticket.step, ticket.begin + row);
    failure.error = std::make_exception_ptr(
        Error(Code::kTimeout, "Loader",
              "index " + std::to_string(failure.index) + " (epoch " + std::to_string(ticket.epoch) +
                  ", batch " + std::to_string(ticket.step) + ", worker " +
                  std::to_string(task.worker) + ") took longer than " +
                  std::to_string(static_cast<double>(engine_.settings().timeout_ns) / 1e9) + " s"));
  } else if (task.kind == ResultKind::kBroken) {
    failure.index = plan.index_of(ticket.epoch, ticket.base, ticket.step, ticket.begin);
    failure.error = std::make_exception_ptr(error_in(task));
  } else {
    failure.index = plan.index_of(ticket.epoch, ticket.base, ticket.step, ticket.begin);
    failure.error =
        std::make_exception_ptr(Error(Code::kOutOfMemory, "Loader", std::string(text_in(task))));
  }
  LoaderEngine::raise(std::move(failure));  // a virtual call loses [[noreturn]] in GCC
}

void LoaderEngine::raise(LoaderFailure failure) {
  {
    std::lock_guard lock(failing_);
    failure_ = failure;
  }
  consumer_.fail();
  std::rethrow_exception(failure.error);
}

// ---- observing ---------------------------------------------------------------------------------

std::optional<LoaderFailure> LoaderEngine::failure() const {
  std::lock_guard lock(failing_);
  return failure_;
}

std::string LoaderEngine::title() const {
  if (samples_ != nullptr) return type_name(samples_->source().type());
  std::string title;
  for (const std::string& stage : engine_.plan().titles())
    title += (title.empty() ? "" : " > ") + stage;
  return title;
}

LoaderStats LoaderEngine::stats() const {
  TicketRing& ring = engine_.ring();
  LoaderStats stats{figures_of(ring.consumer()),   {},
                    engine_.worker_stages(),       engine_.stream_stages(),
                    engine_.stream_bytes_copied(), ring.sleepers().active(),
                    engine_.scheduler().queue(),   engine_.losses()};
  for (uint32_t w = 0; w < ring.workers(); ++w) stats.workers += ring.figures(w);
  return stats;
}

Snapshot LoaderEngine::snapshot() const {
  const bool in_line = workers() == 0;
  Snapshot s = engine_.snapshot(workers(), in_line ? "inline" : "thread");
  s.title = title();
  s.batch_size = engine_.plan().batched() ? engine_.plan().max_rows() : 0;
  s.mode = in_line ? "inline" : "threads";
  s.facts = {{"order", engine_.settings().ordered ? "in order" : "as they come"}};
  s.stages = engine_.worker_stages();
  s.stream_stages = engine_.stream_stages();
  return s;
}

}  // namespace penstock
