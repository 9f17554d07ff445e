#include "penstock/pipeline/engine/loader_worker.h"

#include <memory>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/memory/copy.h"
#include "penstock/pipeline/stages/losses.h"

namespace penstock {
namespace {

// Attempts to replace an item that is a whole batch, whose number of samples nobody knows.
constexpr uint32_t kItemAttempts = 16;

// An item as it may leave: tensors whose memory somebody else refers to are copied, for they may be
// overwritten (a reused buffer) while the consumer still looks at them.
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

}  // namespace

void LoaderWorker::run(const Ticket& ticket, Slot& slot) {
  if (ticket.version != version_) {
    order_ = orders_.order();
    version_ = ticket.version;
  }
  clock_.count_into(board_.place(slot.claim().worker).stages);
  losses_.clear();
  base_ = nullptr;
  uint32_t count = ticket.end - ticket.begin;
  indices_.resize(count);
  order_.indices(ticket.epoch, ticket.base, ticket.step, ticket.begin, indices_);
  plan_.samples ? run_rows(ticket, slot) : run_item(ticket, slot);
  if (!slot.taken_away()) slot.counters().samples.add_single_writer(count);
}

// An exception, or null and `out`.
std::exception_ptr LoaderWorker::attempt(const Ticket& ticket, uint64_t index, uint32_t worker,
                                         Example& out) {
  std::exception_ptr error;
  for (uint32_t n = 0;; ++n) {
    try {
      StageClock::Piece piece(clock_, gets_, kGet);
      clock_.count(kGet, 1);
      SampleContext context({order_.options().seed, ticket.epoch, index, 0}, worker);
      out = source_.get(index, context);
      return nullptr;
    } catch (...) {
      error = std::current_exception();
    }
    board_.place(worker).counters.errors.add_single_writer();
    if (n >= plan_.retries) return error;
    board_.consumer().retried.add();
  }
}

// One row's sample under the error policy. An exception is to be raised; null and an empty `out`:
// the row is lost, and noted.
std::exception_ptr LoaderWorker::sample(const Ticket& ticket, Slot& slot, uint32_t row,
                                        Example& out) {
  if (!slot.progress({row})) throw Error(Code::kClosed, "worker", "the ticket was taken away");
  uint64_t index = indices_[row];
  out = Example();
  std::exception_ptr error;
  if (slot.ending({row})) {
    error = std::make_exception_ptr(Error(Code::kTimeout, "Loader", "took longer than is allowed"));
  } else {
    error = attempt(ticket, index, slot.claim().worker, out);
  }
  if (error == nullptr || plan_.on_error == OnError::kRaise) return error;
  if (plan_.on_error == OnError::kReplace) {
    return replacement(ticket, slot, row, std::move(error), out);
  }
  losses_.push_back({ticket.begin + row, index, false, text_of(error), nullptr, {}});
  out = Example();
  return nullptr;
}

std::exception_ptr LoaderWorker::replacement(const Ticket& ticket, Slot& slot, uint32_t row,
                                             std::exception_ptr error, Example& out) {
  uint64_t position = order_.position(ticket.base, ticket.step, ticket.begin + row);
  uint32_t left = plan_.samples ? ticket.rows : kItemAttempts;
  std::string reason = text_of(error);
  for (uint32_t n = 0; left > 0 && n < order_.options().length; ++n) {
    uint64_t other = order_.replacement(ticket.epoch, position, n);
    if (other == indices_[row]) continue;  // which is no attempt
    --left;
    const Call call{row, n + 1};
    if (!slot.progress(call)) throw Error(Code::kClosed, "worker", "the ticket was taken away");
    if (slot.ending(call)) continue;
    if (attempt(ticket, other, slot.claim().worker, out) == nullptr) {
      losses_.push_back({ticket.begin + row, indices_[row], true, std::move(reason), nullptr, {}});
      return nullptr;
    }
  }
  return error;  // none of them: that is an error after all
}

void LoaderWorker::run_item(const Ticket& ticket, Slot& slot) {
  auto outcome = std::make_unique<Outcome>();
  if (auto error = sample(ticket, slot, 0, outcome->batch)) {
    return fail(slot, std::move(error), indices_[0]);
  }
  bool lost = !losses_.empty() && !losses_[0].replaced;
  outcome->losses = std::move(losses_);
  uint64_t bytes = lost ? 0 : detach(outcome->batch, slot.counters());
  slot.counters().bytes.add_single_writer(bytes);
  hand_over(slot, lost ? ResultKind::kSkipped : ResultKind::kPacket, bytes, std::move(outcome));
}

void LoaderWorker::run_rows(const Ticket& ticket, Slot& slot) {
  Example sample_of_row;
  uint64_t bytes = 0;
  for (uint32_t row = 0; row < indices_.size(); ++row) {
    if (auto error = sample(ticket, slot, row, sample_of_row)) {
      return fail(slot, std::move(error), indices_[row]);
    }
    if (!losses_.empty() && losses_.back().row == ticket.begin + row && !losses_.back().replaced) {
      continue;
    }
    try {
      write_row(ticket, slot, row, sample_of_row);
    } catch (const Error& error) {
      // What is wrong with the sample is the batch's error; no room, or withdrawn, is not.
      if (error.code() != Code::kInvalidArgument) throw;
      return fail(slot, std::current_exception(), indices_[row]);
    }
    for (const Field& field : rows_.fields()) bytes += field.row_bytes;
  }
  slot.counters().bytes.add_single_writer(bytes);
  std::unique_ptr<Outcome> outcome;
  if (!losses_.empty()) {
    outcome = std::make_unique<Outcome>();
    outcome->losses = std::move(losses_);
  }
  hand_over(slot, ResultKind::kRows, bytes, std::move(outcome));
}

void LoaderWorker::write_row(const Ticket& ticket, Slot& slot, uint32_t row,
                             const Example& sample) {
  if (base_ == nullptr) {
    bool known = layout_.size() != 0 && layout_.matches(sample);
    if (!known) layout_ = SampleLayout(sample);
    if (!known || rows_.rows() != ticket.rows) rows_ = RowLayout(layout_.fields(), ticket.rows);
    base_ = slot.rows(layout_.bytes(), rows_.bytes(), ticket.begin + row);
    if (base_ == nullptr) refuse_ragged(ticket, slot, row, sample);
  } else if (!layout_.matches(sample)) {
    refuse_ragged(ticket, slot, row, sample);
  }
  StageClock::Piece piece(clock_, writes_, kRows);
  clock_.count(kRows, 1);
  for (size_t f = 0; f < sample.size(); ++f) {
    Tensor dense = sample[f].second.contiguous();
    uint64_t bytes = rows_.fields()[f].row_bytes;
    Slot::Write ours(slot);
    if (!ours) throw Error(Code::kClosed, "worker", "the ticket was taken away");
    copy_stream(rows_.row(base_, f, ticket.begin + row), dense.data(), bytes);
    count_copy(slot.counters(), CopyReason::kRow, bytes);
  }
}

void LoaderWorker::refuse_ragged(const Ticket& ticket, Slot& slot, uint32_t row,
                                 const Example& sample) {
  SampleLayout expected;
  uint32_t other_row;
  {
    Slot::Write ours(slot);
    if (!ours) throw Error(Code::kClosed, "worker", "the ticket was taken away");
    expected = SampleLayout(slot.layout());
    other_row = slot.layout_row();
  }
  uint64_t other = 0;
  order_.indices(ticket.epoch, ticket.base, ticket.step, other_row, {&other, 1});
  throw Error(Code::kInvalidArgument, "batch",
              "samples of one batch must be alike: index " + std::to_string(indices_[row]) +
                  " gave " + SampleLayout(sample).to_string() + ", index " + std::to_string(other) +
                  " gave " + expected.to_string());
}

void LoaderWorker::fail(Slot& slot, std::exception_ptr error, uint64_t index) {
  auto outcome = std::make_unique<Outcome>();
  outcome->error = std::move(error);
  outcome->index = index;
  hand_over(slot, ResultKind::kError, 0, std::move(outcome));
}

}  // namespace penstock
