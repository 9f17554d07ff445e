#include "penstock/pipeline/engine/plan_tickets.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/stages/stream_chunk.h"

namespace penstock {

PlanTickets::PlanTickets(std::shared_ptr<const Plan> plan, bool rows_in_place)
    : plan_(std::move(plan)),
      collected_(!rows_in_place && !plan_->bound() && !is_chunk_source(plan_->chain())) {
  if (!plan_->batched() || plan_->root()->ragged() || plan_->root()->padding() != nullptr) return;
  const SpecRef spec = plan_->chain().spec();
  if (spec == nullptr) {
    rows_ = Rows::kUnknown;
  } else if (spec->fixed()) {
    rows_ = Rows::kPlaced;
  }
}

void PlanTickets::saw(bool fixed) {
  if (!fixed) rows_ = Rows::kTogether;
  if (rows_ == Rows::kUnknown) rows_ = Rows::kPlaced;
}

void PlanTickets::set_stream_reader(StreamReader* reader, Allocator& arena, size_t remembered) {
  reader_ = reader;
  arena_ = &arena;
  remembered_ = remembered;
}

std::optional<uint64_t> PlanTickets::steps(uint64_t, uint64_t base) {
  if (plan_->stream() != nullptr || describer_ != nullptr) return std::nullopt;
  // Cached, because the scheduler asks several times per ticket.
  if (!steps_ || steps_base_ != base) {
    steps_ = plan_->steps(base);
    steps_base_ = base;
  }
  return steps_;
}

Tickets::Described PlanTickets::describe(const Position& at, BatchEntry& entry) {
  entry.rows_together = rows_ == Rows::kTogether;
  if (describer_ != nullptr) return describer_->describe(at, entry);
  if (plan_->stream() == nullptr) {
    entry.rows = plan_->rows(at.epoch, at.base, at.step);
    return Described::kPosted;
  }
  if (!begun_ || records_.empty() || records_.back().at != at) {
    // Another epoch, or a withdrawn ticket.
    restore(at, place_at(at));
    reader_->start(at.epoch, records_.back().place);
    begun_ = true;
  }
  std::optional<StreamReader::Made> made = reader_->take();
  if (!made) return Described::kNotYet;
  Record& record = records_.back();
  record.losses = std::move(made->losses);
  if (made->failure) {
    record.place = made->before;
    failure_ = std::move(made->failure);
    begun_ = false;
    return Described::kFailed;
  }
  if (made->end) {
    begun_ = false;
    leftover_ = {at.epoch, std::exchange(record.losses, {})};
    return Described::kEnd;
  }
  const uint64_t per = plan_->per_output();
  // Rows of the ticket: rows of a batch are elements of the stream; single elements may be batches.
  entry.rows = static_cast<uint32_t>(plan_->batched() ? made->rows : (made->rows + per - 1) / per);
  entry.input_offset = made->offset;
  input_bytes_ = std::max(input_bytes_, made->bytes);
  record.place = made->before;
  records_.push_back({{at.epoch, at.base, at.step + 1}, made->after, {}});
  if (records_.size() > remembered_) records_.pop_front();
  return Described::kPosted;
}

StreamReader::Place PlanTickets::place_at(const Position& at) const {
  for (const Record& record : records_) {
    if (record.at == at) return record.place;
  }
  if (at.step == 0 && at.base == 0) return {};
  throw Error(Code::kInternal, "stream", "a place that was forgotten");
}

void PlanTickets::restore(const Position& at, StreamReader::Place place) {
  auto same = std::find_if(records_.begin(), records_.end(),
                           [&](const Record& record) { return record.at == at; });
  records_.erase(same, records_.end());
  records_.push_back({at, std::move(place), {}});
  begun_ = false;
  failure_.reset();
  if (leftover_.epoch >= at.epoch) leftover_ = {};
}

std::vector<Failure> PlanTickets::take_losses(const Position& at) {
  for (Record& record : records_) {
    if (record.at == at) return std::exchange(record.losses, {});
  }
  return {};
}

PlanTickets::Leftover PlanTickets::take_leftover(const Position& at) {
  if (at.epoch <= leftover_.epoch) return {};
  return std::exchange(leftover_, {});
}

void PlanTickets::release() {
  for (Record& record : records_) record.losses.clear();
  failure_.reset();
  leftover_ = {};
}

std::optional<Failure> PlanTickets::take_failure() { return std::exchange(failure_, std::nullopt); }

}  // namespace penstock
