#include "penstock/pipeline/engine/chain_worker.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "penstock/base/cancellation.h"
#include "penstock/base/error.h"
#include "penstock/memory/copy.h"
#include "penstock/pipeline/element/block.h"
#include "penstock/pipeline/stages/losses.h"
#include "penstock/pipeline/stages/memory_rows.h"

namespace penstock {
namespace {

// Whether the ticket is a granule, not a whole batch.
bool is_part(const Ticket& ticket) { return ticket.end - ticket.begin != ticket.rows; }

// The ticket's share of a batch of so many bytes.
uint64_t share_of(const Ticket& ticket, uint64_t bytes) {
  const uint64_t rows = std::max(ticket.rows, 1u);
  return bytes * ticket.end / rows - bytes * ticket.begin / rows;
}

// An entry has space for kLayoutBytes. Checked here, because Slot::memory() would not name the
// element.
void refuse_many_leaves(const ElementSpec& spec) {
  const size_t bytes = spec.bytes().size();
  if (bytes <= kLayoutBytes) return;
  throw Error(Code::kInvalidArgument, "batch",
              "an element has " + std::to_string(spec.leaves().size()) +
                  " leaves, whose names and shapes take " + std::to_string(bytes) +
                  " bytes; a batch has space for " + std::to_string(kLayoutBytes) +
                  " of them: put what is alike into one array");
}

constexpr const char* kTimeoutText = "took longer than timeout allows";
constexpr const char* kLostText =
    "lost its worker process three times (killed, crashed or out of memory)";

// Rows of a ticket whose positions are listed (PlanTickets::set_describer).
void read_listed(const std::byte* listed, uint64_t first, std::span<uint64_t> positions,
                 uint64_t length) {
  uint64_t kind;
  std::memcpy(&kind, listed, sizeof(kind));
  if (kind != 0) throw Error(Code::kInternal, "batch", "positions of rows must be numbers");
  std::memcpy(positions.data(), listed + (2 + first) * sizeof(uint64_t), positions.size_bytes());
  for (uint64_t position : positions) {
    if (position < length) continue;
    throw Error(Code::kInvalidArgument, "batch",
                "index " + std::to_string(position) + " is beyond the last row");
  }
}

Error withdrawn() { return {Code::kClosed, "worker", "the ticket was taken away"}; }

Collector::Lengths lengths_of(const Plan& plan, bool parallel_map) {
  // Elements are delivered one by one.
  if (parallel_map || !plan.batched()) return Collector::Lengths::kAny;
  if (plan.root()->padding() != nullptr) return Collector::Lengths::kPadded;
  return plan.root()->ragged() ? Collector::Lengths::kRagged : Collector::Lengths::kEqual;
}

}  // namespace

ChainWorker::ChainWorker(std::shared_ptr<const Plan> plan, const Options& options, TicketRing& ring,
                         Scratch& scratch, std::unique_ptr<Outlet> outlet)
    : plan_(std::move(plan)),
      options_(options),
      ring_(ring),
      outlet_(std::move(outlet)),
      scratch_(scratch),
      context_{scratch_, options.seed,     0,       options.retries, this,
               &clock_,  &plan_->stages(), nullptr, options.skip},
      spec_(plan_->chain().spec()),
      bound_(plan_->bound()),
      chunk_(scratch_),
      collected_(scratch_, lengths_of(*plan_, options.parallel_map),
                 plan_->batched() ? plan_->root()->padding() : nullptr, [this](uint64_t position) {
                   return plan_->chain().index(at_, position).value_or(position);
                 }) {}

bool ChainWorker::progress(uint32_t row, uint32_t call) { return slot_->progress({row, call}); }

// The text is short, because that of a skipped failure is the reason of a loss. Only for a parallel
// map it includes the place, which is not added later.
std::exception_ptr ChainWorker::poisoned(uint32_t row, uint32_t call) {
  const std::optional<TicketRing::Ending> ending = slot_->ending({row, call});
  if (!ending) return nullptr;
  const bool lost = ending->kind == ResultKind::kLost;
  std::string text = options_.parallel_map ? place_of_row(row, ending->worker) + " " : "";
  text += lost ? kLostText : kTimeoutText;
  auto error =
      std::make_exception_ptr(Error(lost ? Code::kWorkerLost : Code::kTimeout, "Loader", text));
  ended_.push_back({row, *ending, error});
  return error;
}

uint64_t ChainWorker::index_of(uint32_t row) const {
  const Ticket& ticket = slot_->ticket();
  uint64_t position = 0;
  const At at = locate(ticket, ticket.begin + row, {&position, 1});
  return plan_->chain().index(at, position).value_or(position);
}

std::string ChainWorker::place_of_row(uint32_t row, uint32_t worker) const {
  const Ticket& ticket = slot_->ticket();
  const uint64_t index = index_of(row);
  const std::string epoch = "epoch " + std::to_string(ticket.epoch);
  const std::string by = "worker " + std::to_string(worker);
  if (options_.parallel_map) {
    return "element " + std::to_string(index) + " of a stage in front of a stream's (" + epoch +
           ", " + by + ")";
  }
  return epoch + ", index " + std::to_string(index) + " (step " + std::to_string(ticket.step) +
         "), " + by;
}

// Adds to a raised failure where it happened, and what to do.
void ChainWorker::name_if_ended(Failure& failure) const {
  const auto found = std::ranges::find(ended_, failure.error, &Ended::error);
  if (found == ended_.end()) return;
  const uint32_t row = found->row;
  const auto [worker, kind] = found->how;
  std::string text = place_of_row(row, worker) + " ";
  if (kind == ResultKind::kTimeout) {
    text.append(kTimeoutText)
        .append("; its worker was stopped. Raise timeout=, or mend the sample");
  } else {
    text.append(kLostText).append("; run element ");
    text.append(std::to_string(index_of(row))).append(" of ");
    const auto& titles = plan_->titles();
    for (size_t i = 0; i < titles.size(); ++i) text.append(i == 0 ? "" : " > ").append(titles[i]);
    text.append(" alone to see why");
  }
  const Code code = kind == ResultKind::kTimeout ? Code::kTimeout : Code::kWorkerLost;
  failure.error = std::make_exception_ptr(Error(code, "Loader", text));
}

void ChainWorker::on_exception(bool again) {
  slot_->counters().errors.add_single_writer();
  if (again) ring_.consumer().retried.add();
}

bool ChainWorker::interrupted(const std::exception_ptr& by) {
  if (options_.in_line) interruption_ = by;
  return options_.in_line;
}

void ChainWorker::run(const Ticket& ticket, Slot& slot) {
  slot_ = &slot;
  begin_ = ticket.begin;
  context_.worker = slot.claim().worker;
  clock_.count_into(ring_.place(context_.worker).stages);
  losses_.clear();
  notes_.clear();
  failed_.reset();
  ended_.clear();
  result_ = {};
  if (!rows_) rows_.emplace(plan_->chain(), context_, "batch");
  struct Emptied {  // releases results of user functions now, not only with the next ticket
    Scratch& scratch;
    ~Emptied() { scratch.empty(); }
  } emptied{scratch_};
  if (plan_->stream() != nullptr) {
    const std::byte* stream_chunk = slot.input();
    if (stream_chunk == nullptr)
      throw Error(Code::kInternal, "worker", "a ticket without its elements");
    stream_chunk_ = StreamChunk::read(stream_chunk);
    context_.stream_chunk = &stream_chunk_;
  }
  const Cancellation cancellation([this] {
    if (ring_.closed()) throw Error(Code::kClosed, "worker", "the loader was closed");
  });
  try {
    make(ticket, slot);
  } catch (...) {
    if (interruption_ == nullptr) throw;
    const Call call = slot.in_hand();
    failed_ = {plan_->titles()[plan_->last_stage()], index_of(call.row),
               std::exchange(interruption_, nullptr), Decision::kRaise};
    finish(ticket, slot, 0);
  }
}

void ChainWorker::make(const Ticket& ticket, Slot& slot) {
  if (bound_) {
    run_bound(ticket, slot);
  } else if (is_part(ticket) || (!options_.parallel_map && !ticket.rows_together)) {
    run_placed(ticket, slot);
  } else {
    run_collected(ticket, slot);
  }
}

At ChainWorker::locate(const Ticket& ticket, uint64_t row, std::span<uint64_t> positions) const {
  if (plan_->stream() != nullptr && !plan_->batched()) {
    // Elements are delivered one by one: this ticket may have fewer than others.
    uint64_t first = stream_chunk_.ordinal / plan_->per_output() + row;
    for (uint64_t& position : positions) position = first++;
    return {ticket.epoch, 0};
  }
  if (plan_->listed()) {
    read_listed(slot_->input(), row, positions, plan_->chain().length(0));
    return {ticket.epoch, 0};
  }
  return plan_->locate(ticket.epoch, ticket.base, ticket.step, row, positions);
}

// Records the failed rows of `chunk` as losses. False: a failure ends the ticket.
bool ChainWorker::note_failures(const Ticket& ticket, Chunk& chunk, uint32_t first) {
  if (options_.parallel_map) {
    for (auto& [row, lost] : chunk.notes()) result_.notes.push_back(std::move(lost));
    if (!chunk.failures().empty()) result_.failure = std::move(chunk.failures().front().second);
    return !result_.failure;
  }
  for (auto& [row, lost] : chunk.notes()) {
    notes_.push_back({ticket.begin + first + row,
                      lost.position,
                      lost.decision == Decision::kReplace,
                      reason_of(lost),
                      nullptr,
                      {},
                      false});
  }
  if (chunk.failures().empty()) return true;
  auto& failures = chunk.failures();
  std::sort(failures.begin(), failures.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [row, failure] : failures) {
    const bool undecided = failure.decision == Decision::kUndecided;
    const bool raised = undecided ? !options_.skip : !failure.settled();
    if (raised) name_if_ended(failure);
    if (raised && plan_->batched()) {
      failed_ = std::move(failure);
      return false;
    }
    Loss loss{ticket.begin + first + row, failure.position, false, {}, nullptr, {}};
    if (raised) {
      loss.error = std::move(failure.error);
      loss.stage = std::move(failure.stage);
    } else {
      loss.reason = reason_of(failure);
    }
    losses_.push_back(std::move(loss));
  }
  return true;
}

void ChainWorker::run_bound(const Ticket& ticket, Slot& slot) {
  try {
    refuse_many_leaves(*spec_);
  } catch (const Error&) {
    failed_ = {"batch", ticket.step, std::current_exception()};
    return finish(ticket, slot, 0);
  }
  if (layout_.rows() != ticket.rows || layout_.bytes() == 0) {
    layout_ = BlockLayout(*spec_, ticket.rows);
  }
  std::byte* base = slot.memory(spec_->bytes(), layout_.bytes(), ticket.begin);
  if (base == nullptr) {
    throw Error(Code::kInternal, "batch", "two layouts for elements of one spec");
  }
  if (plan_->copied().rows != nullptr) {
    copy_rows(ticket, slot, base);
    return finish(ticket, slot, share_of(ticket, layout_.bytes()));
  }
  const size_t leaves = spec_->leaves().size();
  std::array<uint64_t, Chunk::kRows> positions;
  for (uint32_t row = ticket.begin; row < ticket.end;) {
    const uint32_t count = std::min<uint32_t>(Chunk::kRows, ticket.end - row);
    At at = locate(ticket, row, std::span(positions.data(), count));
    take_up(row - ticket.begin);
    {
      StageClock::Piece piece(clock_, chunks_, plan_->last_stage());
      Slot::Write ours(slot);
      if (!ours) throw withdrawn();
      chunk_.reset(spec_, count);
      for (size_t i = 0; i < leaves; ++i) {
        const RowLayout& fixed = layout_.fixed();
        size_t place = layout_.fixed_place(i);
        chunk_.bind(i, fixed.row(base, place, row), fixed.fields()[place].row_bytes);
      }
      rows_->fetch(at, std::span<const uint64_t>(positions.data(), count), chunk_, 0);
    }
    if (!note_failures(ticket, chunk_, row - ticket.begin)) break;
    scratch_.empty();
    row += count;
  }
  if (!losses_.empty()) {
    Slot::Write ours(slot);
    if (!ours) throw withdrawn();
    std::vector<uint32_t> lost;
    for (const Loss& loss : losses_) lost.push_back(loss.row);
    layout_.fixed().compact_rows(base, lost, ticket.end);
  }
  finish(ticket, slot, share_of(ticket, layout_.bytes()));
}

// The next rows begin with this row of the ticket. If they take too long, this row is blamed.
void ChainWorker::take_up(uint32_t row) {
  if (!slot_->progress({row})) throw withdrawn();
  context_.first_row = row;
  context_.one_row = false;
}

// Copies all rows at once: none of them can fail.
void ChainWorker::copy_rows(const Ticket& ticket, Slot& slot, std::byte* base) {
  positions_.resize(ticket.end - ticket.begin);
  const At at = locate(ticket, ticket.begin, positions_);
  take_up(0);
  StageClock::Piece piece(clock_, chunks_, plan_->last_stage());
  Slot::Write ours(slot);
  if (!ours) throw withdrawn();
  copy_below(0, at, positions_, base, ticket.begin);
  count_copy(slot.counters(), CopyReason::kRow, share_of(ticket, layout_.bytes()));
}

// Applies the stages above the arrays from `level` on, which map `positions` to positions in the
// arrays.
void ChainWorker::copy_below(size_t level, const At& at, std::span<uint64_t> positions,
                             std::byte* base, uint32_t row) {
  const Plan::Copied& copied = plan_->copied();
  StageClock::Within within(clock_, copied.stages[level]);
  clock_.count(copied.stages[level], positions.size());
  if (level == copied.above.size()) return copied.rows->copy(positions, layout_, base, row);
  while (!positions.empty()) {
    At there = at;
    const uint32_t count = copied.above[level]->map(there, positions);
    copy_below(level + 1, there, positions.first(count), base, row);
    positions = positions.subspan(count);
    row += count;
  }
}

// Makes `count` rows as a chunk of the collector. False: a failure ends the ticket.
bool ChainWorker::fetch(const Ticket& ticket, uint32_t row, uint32_t count) {
  positions_.resize(count);
  at_ = locate(ticket, row, positions_);
  take_up(row - ticket.begin);
  Chunk& chunk = collected_.add(positions_);
  {
    StageClock::Piece piece(clock_, chunks_, plan_->last_stage());
    rows_->fetch(at_, positions_, chunk, 0);
  }
  return note_failures(ticket, chunk, row - ticket.begin);
}

// Collects the ticket's rows. False: a failure ends the ticket.
bool ChainWorker::gather(const Ticket& ticket) {
  collected_.begin(spec_);
  rows_->begin();
  for (uint32_t row = ticket.begin; row < ticket.end;) {
    const uint32_t count = std::min<uint32_t>(Chunk::kRows, ticket.end - row);
    if (!fetch(ticket, row, count)) return false;
    row += count;
  }
  return true;
}

void ChainWorker::run_collected(const Ticket& ticket, Slot& slot) {
  gather(ticket) ? write_collected(ticket, slot) : finish(ticket, slot, 0);
}

void ChainWorker::write_collected(const Ticket& ticket, Slot& slot) {
  try {
    StageClock::Piece piece(clock_, settling_, plan_->last_stage());
    if (!collected_.settle()) return finish(ticket, slot, 0);  // no row is left
    refuse_many_leaves(*collected_.spec());
    if (plan_->batched() && !options_.parallel_map) refuse_columns(*collected_.spec());
  } catch (const Error& error) {
    if (error.code() != Code::kInvalidArgument) throw;
    failed_ = {"batch", ticket.step, std::current_exception()};
    return finish(ticket, slot, 0);
  }
  if (void* item = collected_.object()) return finish_item(ticket, slot, item);
  BlockLayout layout = collected_.layout(ticket.rows);
  std::byte* base = slot.memory(collected_.spec()->bytes(), layout.bytes(), ticket.begin);
  if (base == nullptr) {
    throw Error(Code::kInternal, "batch", "a batch of several workers whose layout is not known");
  }
  {
    StageClock::Piece piece(clock_, writing_, plan_->last_stage());
    Slot::Write ours(slot);
    if (!ours) throw withdrawn();
    collected_.write(layout, base);
  }
  count_copy(slot.counters(), CopyReason::kRow, layout.bytes());
  finish(ticket, slot, layout.bytes());
}

// Makes and writes a few rows at a time, while they are in the cache. The batch's layout follows
// from the first row of each granule. If a row does not fit into the layout, the batch is made
// again by one worker, which collects all rows.
void ChainWorker::run_placed(const Ticket& ticket, Slot& slot) {
  auto apart = [&] { slot.finish_inline(ResultKind::kMismatch, 0, {}); };
  std::byte* base = nullptr;
  uint32_t written = 0;
  bool collecting = false;
  collected_.begin(spec_);
  rows_->begin();
  for (uint32_t row = ticket.begin; row < ticket.end;) {
    const uint32_t count = std::min(rows_at_once(), ticket.end - row);
    if (!fetch(ticket, row, count)) {
      // Rows of a batch are compared with its first row, which this granule does not have.
      return is_part(ticket) && failed_ && failed_->schema_differs ? apart()
                                                                   : finish(ticket, slot, 0);
    }
    row += count;
    if (collecting) continue;
    try {
      StageClock::Piece piece(clock_, settling_, plan_->last_stage());
      if (!collected_.settle()) {
        collected_.begin(spec_);
        continue;
      }
      refuse_many_leaves(*collected_.spec());
    } catch (const Error& error) {
      if (error.code() != Code::kInvalidArgument) throw;
      return apart();
    }
    const SpecRef& spec = collected_.spec();
    if (base == nullptr && !spec->fixed() && !is_part(ticket)) {
      collecting = true;
      continue;
    }
    if (!spec->fixed()) return apart();
    if (base == nullptr) {
      if (placed_ == nullptr || *placed_ != *spec || layout_.rows() != ticket.rows) {
        placed_ = spec;
        layout_ = BlockLayout(*placed_, ticket.rows);
      }
      base = slot.memory(placed_->bytes(), layout_.bytes(), ticket.begin);
      if (base == nullptr) return apart();
    } else if (*placed_ != *spec) {
      return apart();
    }
    {
      StageClock::Piece piece(clock_, writing_, plan_->last_stage());
      Slot::Write ours(slot);
      if (!ours) throw withdrawn();
      collected_.write(layout_, base, ticket.begin + written);
    }
    written += static_cast<uint32_t>(collected_.rows());
    collected_.begin(spec_);
    scratch_.empty();
  }
  if (collecting) return write_collected(ticket, slot);
  const uint64_t bytes = base == nullptr ? 0 : share_of(ticket, layout_.bytes());
  count_copy(slot.counters(), CopyReason::kRow, bytes);
  finish(ticket, slot, bytes);
}

// Few enough that the rows are still in the CPU cache when they are written.
uint32_t ChainWorker::rows_at_once() const {
  constexpr uint64_t kCacheBytes = 64 << 10;
  if (placed_ == nullptr) return 1;
  const uint64_t row_bytes = std::max<uint64_t>(placed_->fixed_bytes(), 1);
  return static_cast<uint32_t>(std::clamp<uint64_t>(kCacheBytes / row_bytes, 1, Chunk::kRows));
}

void ChainWorker::finish_item(const Ticket& ticket, Slot& slot, void* item) {
  slot.counters().samples.add_single_writer(1);
  outlet_->item(slot, ticket, item, std::move(notes_));
}

void ChainWorker::finish(const Ticket& ticket, Slot& slot, uint64_t bytes) {
  if (options_.parallel_map) {
    if (failed_) result_.failure = std::move(failed_);
    return outlet_->element(slot, ticket, bytes, std::move(result_));
  }
  slot.counters().samples.add_single_writer(ticket.end - ticket.begin - losses_.size());
  slot.counters().bytes.add_single_writer(bytes);
  if (plan_->batched()) clock_.count(plan_->last_stage(), ticket.end - ticket.begin);
  if (failed_) {
    outlet_->fail(slot, ticket, std::move(*failed_));
  } else {
    losses_.insert(losses_.end(), notes_.begin(), notes_.end());
    outlet_->rows(slot, bytes, std::move(losses_));
  }
}

}  // namespace penstock
