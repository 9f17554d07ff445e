// How a LoaderEngine takes what its workers made: batches, losses, exceptions.
#include <cstring>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/loader_engine.h"

namespace penstock {
namespace {

// Moves the rows that were kept together; `lost` are sorted.
void close_gaps(const RowLayout& layout, std::byte* base, const std::vector<uint32_t>& lost) {
  for (size_t f = 0; f < layout.fields().size(); ++f) {
    for (size_t i = 0; i < lost.size(); ++i) {
      uint64_t from = lost[i] + uint64_t{1};
      uint64_t end = i + 1 < lost.size() ? lost[i + 1] : layout.rows();
      std::memmove(layout.row(base, f, from - 1 - i), layout.row(base, f, from),
                   (end - from) * layout.fields()[f].row_bytes);
    }
  }
}

}  // namespace

// What a unit carries; it is the unit's no longer.
std::unique_ptr<Outcome> LoaderEngine::outcome_of(Unit& unit) {
  unit.kind = ResultKind::kNone;
  return std::unique_ptr<Outcome>(
      reinterpret_cast<Outcome*>(std::exchange(unit.object, uint64_t{0})));
}

void LoaderEngine::note(const std::vector<Outcome::Loss>& losses, uint64_t epoch) {
  ConsumerCounters& counters = board_->consumer();
  std::lock_guard lock(notes_);
  for (const Outcome::Loss& loss : losses) {
    (loss.replaced ? counters.replaced : counters.skipped).add_single_writer();
    losses_.push_back({epoch, loss.index, loss.reason});
  }
}

// The batch that poll() found; nothing if it vanished (skipped).
std::optional<Example> LoaderEngine::take() {
  Post& post = feed_->current();
  uint64_t seq = feed_->current_seq();
  if (auto g = feed_->failed_granule()) raise(board_->unit_at(seq, *g), *g);
  Unit& unit = board_->unit_at(seq, 0);
  if (unit.kind == ResultKind::kRows) return take_rows(post);
  uint64_t bytes = unit.bytes;
  bool skipped = unit.kind == ResultKind::kSkipped;
  std::unique_ptr<Outcome> outcome = outcome_of(unit);
  if (outcome == nullptr) throw Error(Code::kInternal, "Loader", "a result without a batch");
  note(outcome->losses, post.epoch);
  if (skipped) {
    feed_->skip();
    return std::nullopt;
  }
  feed_->deliver(bytes, 1);
  return std::move(outcome->batch);
}

std::optional<Example> LoaderEngine::take_rows(Post& post) {
  uint64_t seq = feed_->current_seq();
  uint64_t bytes = 0;
  std::vector<uint32_t> lost;
  for (uint32_t g = 0; g < post.granules; ++g) {
    Unit& unit = board_->unit_at(seq, g);
    bytes += unit.bytes;
    std::unique_ptr<Outcome> outcome = outcome_of(unit);
    if (outcome == nullptr) continue;
    note(outcome->losses, post.epoch);
    for (const Outcome::Loss& loss : outcome->losses) {
      if (!loss.replaced) lost.push_back(loss.row);
    }
  }
  uint64_t rows = post.rows - lost.size();
  if (rows == 0) {
    feed_->skip();
    return std::nullopt;
  }
  std::span<const std::byte> known = layout_.bytes();
  if (known.size() != post.layout_length ||
      std::memcmp(known.data(), post.layout, known.size()) != 0) {
    layout_ = SampleLayout(std::span(post.layout, post.layout_length));
    columns_ = RowLayout(layout_.fields(), post.rows);
  } else if (columns_.rows() != post.rows) {
    columns_ = RowLayout(layout_.fields(), post.rows);
  }
  Lease lease = feed_->take_rows();
  if (!lost.empty()) close_gaps(columns_, lease.data(), lost);
  Example batch;
  for (size_t f = 0; f < layout_.size(); ++f) {
    const Field& field = columns_.fields()[f];
    batch.set(layout_.name(f),
              Tensor::view(*field.dtype, columns_.column_shape(f, rows), lease, field.offset));
  }
  feed_->deliver(bytes, rows);
  return batch;
}

uint64_t LoaderEngine::index_of(const Ticket& ticket, uint32_t row) const {
  uint64_t index = 0;
  order_.indices(ticket.epoch, ticket.base, ticket.step, ticket.begin + row, {&index, 1});
  return index;
}

void LoaderEngine::raise(Unit& unit, uint32_t granule) {
  Ticket ticket = ticket_of(board_->claim_in(feed_->current_seq(), granule, 0));
  LoaderFailure failure{ticket.epoch, ticket.step, 0, unit.worker, nullptr};
  if (unit.kind == ResultKind::kError) {
    std::unique_ptr<Outcome> outcome = outcome_of(unit);
    failure.index = outcome->index;
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
  {
    std::lock_guard lock(notes_);
    failure_ = failure;
  }
  running_.reset();
  feed_->fail();
  std::rethrow_exception(failure.error);
}

}  // namespace penstock
