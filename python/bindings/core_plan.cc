// Core where it feeds a Dataset: its workers, what is taken from them, and places.
#include <nanobind/stl/string.h>

#include <utility>

#include "core.h"
#include "dataset.h"
#include "elements.h"
#include "gil.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/engine/local_outlet.h"
#include "penstock/pipeline/transformations/split_batch.h"
#include "python_op.h"

namespace nb = nanobind;

namespace penstock::python {

std::unique_ptr<Fulfiller> Core::chain_worker(bool in_line) {
  ChainWorker::Options options{plan_.order.seed, plan_.retries, plan_.on_error == OnError::kSkip};
  options.in_line = in_line;
  return worker_of_plan(pipeline_, options, *board_, local_outlet);
}

// What workers in other processes say of a section's elements (PacketOutlet::element).
class ProcessInlet : public SectionInlet {
 public:
  explicit ProcessInlet(Core& core) : core_(core) {}

  SectionResult take(Unit& unit) override {
    const bool row = unit.kind == ResultKind::kRows;
    if (unit.length == 0) {
      unit.kind = ResultKind::kNone;
      if (row) return {};
      return {Failure{"stream", 0, lost("an exception that was lost")}, {}};
    }
    WithGil locked;
    try {
      nb::object value = core_.unit_value(unit);
      SectionResult result;
      if (!row) result.failure = failure_from(nb::object(value[0]));
      for (nb::handle note : nb::object(value[1])) result.notes.push_back(failure_from(note));
      return result;
    } catch (nb::python_error& error) {
      error.restore();
      return {Failure{"stream", 0, std::make_exception_ptr(Raised::take())}, {}};
    } catch (const Error&) {  // closed
      return {Failure{"stream", 0, std::current_exception()}, {}};
    }
  }

 private:
  static std::exception_ptr lost(const std::string& text) {
    return std::make_exception_ptr(Error(Code::kInternal, "Loader", text));
  }

  static Failure failure_from(nb::handle packed) {
    Failure failure{nb::cast<std::string>(packed[1]), nb::cast<uint64_t>(packed[2]), nullptr};
    failure.forgiven = nb::cast<bool>(packed[4]);
    failure.fatal = nb::cast<bool>(packed[5]);
    failure.replaced = nb::cast<bool>(packed[6]);
    failure.unsure = nb::cast<bool>(packed[7]);
    auto text = nb::cast<std::string>(packed[3]);
    nb::object exception = nb::none();
    if (!nb::object(packed[0]).is_none()) {
      PyObject* unpack = helper("penstock.errors", "unpack_exception");
      if (unpack == nullptr) throw nb::python_error();
      exception = nb::borrow(unpack)(nb::object(packed[0]));
    }
    failure.error =
        std::make_exception_ptr(Raised::from(exception.ptr(), std::move(text), !failure.fatal));
    return failure;
  }

  Core& core_;
};

void Core::make_cursor(const Feed::Options& options, const Cursor::Shares& shares,
                       uint32_t longest) {
  const uint32_t window = options.queue + options.workers;
  Cursor::Options of{window, plan_.order.seed, plan_.retries, plan_.on_error == OnError::kSkip,
                     options.workers > 0};
  of.max_bytes = shares.cursor;
  of.all_bytes = shares.all;
  of.attend = [this] {
    if (!attend()) throw Raised::take();
  };
  if (board_->lanes() > 1) {
    if (processes_) {
      inlet_ = std::make_unique<ProcessInlet>(*this);
    } else {
      inlet_ = std::make_unique<LocalInlet>();
    }
    sections_ = std::make_unique<Sections>(pipeline_, *board_, *arena_, *inlet_,
                                           Sections::Options{options.workers, shares.sections});
    of.sections = sections_.get();
  }
  cursor_ = std::make_unique<Cursor>(pipeline_, of, *arena_,
                                     [board = board_.get()] { board->nudge_consumer(); });
  plan_tickets().set_cursor(cursor_.get(), *arena_, 2 * (longest + options.workers) + 4);
}

void Core::start_plan(uint32_t threads) {
  if (threads == 0) inline_ = chain_worker(true);
  for (uint32_t w = 0; w < threads; ++w) {
    threads_.emplace_back([this, w] {
      os::block_all_signals();
      std::unique_ptr<Fulfiller> chain = chain_worker(false);
      serve(*board_, w, *chain, rows_.get());
    });
  }
}

void Core::run_plan_thread(uint32_t worker) {
#ifndef Py_GIL_DISABLED
  board_->set_exclusive(true);
#endif
  WithoutGil unlocked;
  std::unique_ptr<Fulfiller> chain = chain_worker(false);
  serve(*board_, worker, *chain, rows_.get());
}

void Core::start_cursor() {
  threads_.emplace_back([this] {
    os::block_all_signals();
    cursor_->run();
  });
}

void Core::run_cursor() { cursor_->run(); }

// ---- taking

// Of a unit that is taken: rows that are not there, or not those that were meant.
std::vector<Outcome::Loss> Core::plan_losses(Unit& unit) {
  std::vector<Outcome::Loss> losses;
  if (!processes_) {
    std::unique_ptr<Outcome> outcome = take_outcome(unit);
    if (outcome != nullptr) losses = std::move(outcome->losses);
    return losses;
  }
  nb::object value = unit_value(unit);
  if (value.is_none()) return losses;
  for (nb::handle item : value) {
    losses.push_back({nb::cast<uint32_t>(item[0]),
                      nb::cast<uint64_t>(item[1]),
                      nb::cast<bool>(item[3]),
                      nb::cast<std::string>(item[2]),
                      nullptr,
                      {},
                      nb::cast<bool>(item[4])});
  }
  return losses;
}

nb::object Core::object_of(const PlanOutput::Item& item) {
  if (pipeline_->parts() != 0) {
    nb::list parts;
    for (const Block& part : parts_of(item.block, pipeline_->parts())) {
      parts.append(batch_object(part));
    }
    return nb::tuple(parts);
  }
  return item.row ? row_object(item.block, *item.row) : batch_object(item.block);
}

// Elements that were taken already; their ticket's error; or a null object.
nb::object Core::take_held() {
  auto item = output_->take_held();
  note_taken_losses();
  if (item) return object_of(*item);
  if (auto failure = output_->take_failure()) raise_plan_failure(std::move(*failure));
  return nb::object();
}

nb::object Core::take_plan(Post& post) {
  const uint64_t seq = feed_->current_seq();
  const uint64_t epoch = post.epoch;
  if (output_->apart(*board_)) return nb::object();
  if (auto g = feed_->failed_granule()) {
    Unit& unit = board_->unit_at(seq, *g);
    if (unit.kind != ResultKind::kError || processes_) {
      raise_failure(unit, ticket_of({&post, &unit, seq, *g, 0, 0}));
    }
    LoaderFailure failure{epoch, post.step, 0, {}, unit.worker, nullptr};
    std::unique_ptr<Outcome> outcome = take_outcome(unit);
    failure.index = outcome->index;
    failure.stage = std::move(outcome->stage);
    failure.error = std::move(outcome->error);
    raise_plan_failure(std::move(failure));
  }
  const uint32_t worker = board_->unit_at(seq, 0).worker;
  auto [bytes, losses] = output_->gather(*board_, [this](Unit& unit) { return plan_losses(unit); });
  if (cursor_ != nullptr) {
    auto before = losses_of(plan_tickets().take_forgiven({epoch, post.base, post.step}));
    losses.insert(losses.end(), before.begin(), before.end());
  }
  auto item = output_->take(bytes, worker, std::move(losses));
  note_taken_losses();
  if (!item) return take_held();
  delivered_epoch_ = epoch;
  return object_of(*item);
}

void Core::note_taken_losses() {
  const PlanOutput::Losses lost = output_->take_losses();
  note_plan_losses(lost.losses, lost.epoch);
}

void Core::note_plan_losses(const std::vector<Outcome::Loss>& losses, uint64_t epoch) {
  ConsumerCounters& counters = board_->consumer();
  for (const Outcome::Loss& loss : losses) {
    if (loss.error != nullptr) continue;  // it is raised, not lost
    (loss.replaced ? counters.replaced : counters.skipped).add_single_writer();
    losses_.push_back({epoch, loss.index, loss.reason});
  }
}

// What was lost behind the last batch of an epoch.
void Core::note_leftover() {
  if (cursor_ == nullptr) return;
  PlanTickets::Leftover behind = plan_tickets().take_leftover(feed_->position());
  note_plan_losses(losses_of(behind.losses), behind.epoch);
}

void Core::raise_stream_failure() {
  auto failed = plan_tickets().take_failure();
  if (!failed) throw Error(Code::kInternal, "stream", "a failure without a reason");
  const Position& at = feed_->position();
  raise_plan_failure({at.epoch, at.step, failed->position, failed->stage, 0, failed->error});
}

void Core::raise_plan_failure(LoaderFailure failure) {
  feed_->fail();
  failed_ = true;
  nb::object exception = nb::steal(exception_of(failure.error));
  PyObject* make = helper("penstock._interop", "failure_of_stage");
  if (make == nullptr) throw nb::python_error();
  raise(nb::borrow(make)(exception, failure.stage, failure.epoch, failure.index, failure.worker));
}

// ---- place

uint64_t Core::pass_of(uint64_t epoch) const {
  return pipeline_->rounds() == kEndless ? 0 : epoch / pipeline_->rounds();
}

uint64_t Core::begin_pass(bool resumed) {
  ConsumerLock lock = consume();
  check_open();
  const Position at = output_->position();
  delivered_epoch_ = at.epoch;
  const uint64_t rounds = pipeline_->rounds();
  const uint64_t into = rounds == kEndless ? at.epoch : at.epoch % rounds;
  uint64_t epoch = at.epoch;
  bool amid = into != 0 || at.step != 0 || !feed_->ahead().empty() || output_->anything_held();
  amid = amid || failed_;
  if (amid && !resumed) {
    output_->drop_held();
    epoch = rounds == kEndless ? epoch + 1 : epoch - into + rounds;
    feed_->seek({epoch, 0, 0}, {});
    delivered_epoch_ = epoch;
  }
  return epoch;
}

bool Core::holds() {
  ConsumerLock lock = consume();
  return output_ != nullptr && output_->anything_held();
}

std::string Core::plan_state() { return output_->state().to_json(); }

void Core::check_plan_state(const std::string& state) {
  (void)output_->place_of(LoaderState::from_json(state));
}

void Core::restore_plan(const std::string& state) {
  ConsumerLock lock = consume();
  check_open();
  PlanOutput::Place place = output_->place_of(LoaderState::from_json(state));
  output_->drop_held();
  feed_->seek(place.position, place.ahead);
  failed_ = false;
  output_->arrived(place);
  delivered_epoch_ = place.position.epoch;
}

}  // namespace penstock::python
