#include "plan_feed.h"

#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "elements.h"
#include "gil.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/engine/chain_worker.h"
#include "penstock/pipeline/engine/local_outlet.h"
#include "penstock/pipeline/transformations/split_batch.h"
#include "process_inlet.h"
#include "rows.h"

namespace nb = nanobind;

namespace penstock::python {

PlanFeed::PlanFeed(std::shared_ptr<const Plan> plan, const Engine& engine, const Options& options)
    : plan_(std::move(plan)),
      sample_(options.sample),
      engine_(engine),
      seed_(options.seed),
      retries_(options.retries),
      skip_(options.skip),
      processes_(options.processes),
      output_(plan_, options.seed, engine.feed, engine.tickets) {
  if (plan_->stream() != nullptr) make_cursor(options);
}

std::unique_ptr<Fulfiller> PlanFeed::chain_worker(bool in_line) const {
  ChainWorker::Options options{seed_, retries_, skip_};
  options.in_line = in_line;
  return worker_of_plan(plan_, options, engine_.board, local_outlet);
}

void PlanFeed::make_cursor(const Options& options) {
  Cursor::Options of{options.queue + options.workers, seed_, retries_, skip_, options.workers > 0};
  of.max_bytes = options.shares.cursor;
  of.all_bytes = options.shares.all;
  of.attend = options.attend;
  if (engine_.board.lanes() > 1) {
    if (processes_) {
      inlet_ = std::make_unique<ProcessInlet>(engine_.values);
    } else {
      inlet_ = std::make_unique<LocalInlet>();
    }
    sections_ =
        std::make_unique<Sections>(plan_, engine_.board, engine_.arena, *inlet_,
                                   Sections::Options{options.workers, options.shares.sections});
    of.sections = sections_.get();
  }
  cursor_ = std::make_unique<Cursor>(plan_, of, engine_.arena,
                                     [board = &engine_.board] { board->nudge_consumer(); });
  engine_.tickets.set_cursor(cursor_.get(), engine_.arena,
                             2 * (options.longest_queue + options.workers) + 4);
}

std::vector<StageSnapshot> PlanFeed::stream_stages() const {
  if (cursor_ == nullptr) return {};
  return stages_of(figures_of(cursor_->stages()), plan_->titles());
}

// ---- taking

// Of a unit that is taken: rows that are not there, or not those that were meant.
std::vector<Outcome::Loss> PlanFeed::losses_in(Unit& unit) {
  std::vector<Outcome::Loss> losses;
  if (!processes_) {
    std::unique_ptr<Outcome> outcome = take_outcome(unit);
    if (outcome != nullptr) losses = std::move(outcome->losses);
    return losses;
  }
  nb::object value = engine_.values.take(unit);
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

// A batch of arrays' rows.
nb::object PlanFeed::columns_of(const Block& block) const {
  const Example columns = block.batch();
  std::vector<std::byte*> each;
  for (const auto& [name, column] : columns) each.push_back(column.data());
  Owned owner(owner_capsule(columns[0].second.owner()));
  PyObject* batch = owner ? batch_of(sample_, each, block.rows(), owner.get(), nullptr) : nullptr;
  if (batch == nullptr) throw nb::python_error();
  return nb::steal(batch);
}

nb::object PlanFeed::object_of(const PlanOutput::Item& item) const {
  if (!sample_.empty()) return columns_of(item.block);
  if (plan_->parts() != 0) {
    nb::list parts;
    for (const Block& part : parts_of(item.block, plan_->parts())) {
      parts.append(batch_object(part));
    }
    return nb::tuple(parts);
  }
  return item.row ? row_object(item.block, *item.row) : batch_object(item.block);
}

PlanFeed::Taken PlanFeed::take_held() {
  auto item = output_.take_held();
  note_taken_losses();
  if (item) return {object_of(*item), std::nullopt};
  return {nb::object(), output_.take_failure()};
}

PlanFeed::Taken PlanFeed::take() {
  const Post& post = engine_.feed.current();
  const Position at{post.epoch, post.base, post.step};
  const uint32_t worker = engine_.board.unit_at(engine_.feed.current_seq(), 0).worker;
  auto [bytes, losses] =
      output_.gather(engine_.board, [this](Unit& unit) { return losses_in(unit); });
  if (cursor_ != nullptr) {
    auto before = losses_of(engine_.tickets.take_losses(at));
    losses.insert(losses.end(), before.begin(), before.end());
  }
  auto item = output_.take(bytes, worker, std::move(losses));
  note_taken_losses();
  if (!item) return take_held();
  delivered_epoch_ = at.epoch;
  return {object_of(*item), std::nullopt};
}

LoaderFailure PlanFeed::failure_of(Unit& unit, const Ticket& ticket) {
  LoaderFailure failure{ticket.epoch, ticket.step, 0, {}, unit.worker, nullptr};
  std::unique_ptr<Outcome> outcome = take_outcome(unit);
  failure.index = outcome->index;
  failure.stage = std::move(outcome->stage);
  failure.error = std::move(outcome->error);
  return failure;
}

LoaderFailure PlanFeed::stream_failure() {
  auto failed = engine_.tickets.take_failure();
  if (!failed) throw Error(Code::kInternal, "stream", "a failure without a reason");
  const Position& at = engine_.feed.position();
  return {at.epoch, at.step, failed->position, failed->stage, 0, failed->error};
}

void PlanFeed::note_taken_losses() {
  const PlanOutput::Losses lost = output_.take_losses();
  note_losses(lost.losses, lost.epoch);
}

void PlanFeed::note_losses(const std::vector<Outcome::Loss>& losses, uint64_t epoch) {
  for (const Outcome::Loss& loss : losses) {
    if (loss.error != nullptr) continue;  // it is raised, not lost
    engine_.losses.add({epoch, loss.index, loss.reason}, loss.replaced);
  }
}

// What was lost behind the last batch of an epoch.
void PlanFeed::note_leftover() {
  if (cursor_ == nullptr) return;
  PlanTickets::Leftover behind = engine_.tickets.take_leftover(engine_.feed.position());
  note_losses(losses_of(behind.losses), behind.epoch);
}

// ---- passes and places

uint64_t PlanFeed::pass_of(uint64_t epoch) const {
  return plan_->rounds() == kEndless ? 0 : epoch / plan_->rounds();
}

std::optional<uint64_t> PlanFeed::go_on(uint64_t epoch) {
  const uint64_t at = engine_.feed.position().epoch;
  note_leftover();
  if (at != epoch) {
    WithoutGil unlocked;
    for (const auto& cache : plan_->caches()) cache->end_pass();
  }
  if (pass_of(at) != pass_of(epoch) || plan_->known_length() == uint64_t{0}) return std::nullopt;
  if (at != epoch && at > delivered_epoch_ + 1 && plan_->rounds() == kEndless) {
    return std::nullopt;  // a whole round gave nothing: the next ones will not
  }
  if (at != epoch) engine_.feed.begin_epoch();  // a stream's next round is not made before
  return at;
}

bool PlanFeed::gave_all(uint64_t epoch) const {
  return pass_of(engine_.feed.position().epoch) != pass_of(epoch) && !output_.anything_held();
}

uint64_t PlanFeed::begin_pass(bool resumed, bool amid) {
  const Position at = output_.position();
  delivered_epoch_ = at.epoch;
  const uint64_t rounds = plan_->rounds();
  const uint64_t into = rounds == kEndless ? at.epoch : at.epoch % rounds;
  uint64_t epoch = at.epoch;
  amid = amid || into != 0 || at.step != 0 || !engine_.feed.ahead().empty();
  amid = amid || output_.anything_held();
  if (amid && !resumed) {
    output_.drop_held();
    epoch = rounds == kEndless ? epoch + 1 : epoch - into + rounds;
    engine_.feed.seek({epoch, 0, 0}, {});
    delivered_epoch_ = epoch;
  }
  return epoch;
}

void PlanFeed::restore(const LoaderState& state) {
  PlanOutput::Place place = output_.place_of(state);
  output_.drop_held();
  engine_.feed.seek(place.position, place.ahead);
  output_.arrived(place);
  delivered_epoch_ = place.position.epoch;
}

// ---- the end

void PlanFeed::close() {
  if (cursor_ != nullptr) cursor_->close();
}

void PlanFeed::let_go() {
  if (cursor_ == nullptr) return;
  cursor_->let_go();
  engine_.tickets.let_go();
}

}  // namespace penstock::python
