#include "penstock/pipeline/streams/section_reader.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/stages/parcel.h"
#include "penstock/pipeline/stages/stage_clock.h"
#include "penstock/pipeline/streams/indexed_stream.h"
#include "penstock/pipeline/streams/stream_input.h"

namespace penstock {

SectionReader::SectionReader(uint32_t number, SpecRef spec, const Context& context)
    : sections_(*context.sections),
      budget_(sections_.budget()),
      plan_(sections_.plan(number)),
      lane_(sections_.lane(number)),
      spec_(std::move(spec)),
      schema_(spec_, "stream", plan_.batched() ? Decision::kUndecided : plan_.chain().decision()),
      feed_(
          lane_, sections_.arena(), *this,
          [&] {
            Feed::Options of;
            of.queue = sections_.queue();
            of.workers = sections_.workers();
            of.max_bytes = budget_.max_bytes();
            of.pause_at_epochs = true;
            return of;
          }(),
          [this](Unit& unit) { sections_.inlet().take(unit); }),
      part_(budget_,
            [this] {
              feed_.make_ahead();
              count();
            }),
      own_(context.over(scratch_)) {
  if (plan_.stream() == nullptr) return;
  source_ = plan_.stream()->open(own_);
  gathered_.emplace(own_, *plan_.stream(), &sections_.arena(), budget_.max_bytes());
}

// The workers are gone by now, or the board is closed, and they finish nothing any more that was
// not finished.
SectionReader::~SectionReader() { feed_.drain(); }

// Before one is made, an element and what it is made of are taken to be as large as those of other
// sections.
uint64_t SectionReader::unknown() const {
  // Too much to begin with many, unless there is much room; and not to be waited for.
  const uint64_t some = std::clamp<uint64_t>(part_.share(), 64 << 10, 4 << 20);
  return input_bytes_ + std::max(budget_.element_bytes(), some);
}

// The feed takes a batch of unknown size to be as large as its input.
uint64_t SectionReader::input_bytes() const { return feed_.sized() ? input_bytes_ : unknown() / 2; }

uint64_t SectionReader::spent_bytes() const {
  const uint64_t all = budget_.max_bytes();
  return all - std::min(all, part_.most(each(), taken_bytes_));
}

// Of an element that is made, or being made, and of what it is made of.
uint64_t SectionReader::each() const {
  return feed_.sized() ? feed_.typical_bytes() + input_bytes_ : unknown();
}

bool SectionReader::empty() const { return !over_ && feed_.in_flight() == 0 && !feed_.exhausted(); }

// What it has. Who has nothing, and no room for a first one, waits.
void SectionReader::count() {
  part_.is(taken_bytes_ + feed_.in_flight() * each());
  const bool wants = !asked_ && empty() && !feed_.has_room();
  part_.wait(wants && part_.may_have(taken_bytes_ + each()));
}

// ---- tickets
// -------------------------------------------------------------------------------------

std::optional<uint64_t> SectionReader::steps(uint64_t, uint64_t base) {
  if (source_ != nullptr) return std::nullopt;
  return plan_.length(base);
}

Tickets::Described SectionReader::describe(const Position&, Post& post) {
  post.rows = 1;
  if (source_ == nullptr) return Described::kPosted;
  if (!read_.empty() && read_.back().thrown) return Described::kFailed;
  const SectionBudget::Reading reading(budget_);
  Read& next = read_.emplace_back();
  try {
    next.before = {{"ordinal", ordinal_}, {"state", source_->save()}};
    return read(post);
  } catch (...) {
    next.thrown = std::current_exception();
    return Described::kFailed;
  }
}

// One element of the tail's, or what is there instead of it.
Tickets::Described SectionReader::read(Post& post) {
  const uint64_t per = plan_.per_output(), first = ordinal_ * per;
  scratch_.empty();
  const GatherParcel::Unused unused(*gathered_);
  GatherParcel::Gathered gathered =
      gathered_->gather(*source_, {per, per, first, GatherParcel::Failures::kInPlace});
  Read& next = read_.back();
  for (auto& lost : gathered.left_out) next.notes.push_back(std::move(lost.failure));
  if (!gathered.failed.empty()) {
    // Nothing is made of it, nor of those that it would have been one with.
    next.failure = std::move(gathered.failed.front().failure);
    return Described::kNotYet;
  }
  if (gathered.rows == 0 || (gathered.rows < per && plan_.whole_outputs())) {
    if (next.notes.empty()) read_.pop_back();
    return Described::kEnd;
  }
  input_bytes_ = std::max(input_bytes_, Parcel::bytes_of(*gathered_));
  source_->let_go();
  post.indices_offset = Parcel::put(*gathered_, first, sections_.arena());
  next.posted = true;
  ++ordinal_;
  return Described::kPosted;
}

// ---- elements
// ------------------------------------------------------------------------------------

void SectionReader::begin(uint64_t epoch) {
  const SectionBudget::Reading reading(budget_);
  part_.wait(false);
  if (source_ != nullptr) source_->begin(epoch);
  go_to(epoch, 0);
}

void SectionReader::load(uint64_t epoch, const State& state) {
  const SectionBudget::Reading reading(budget_);
  part_.wait(false);
  uint64_t step = 0;
  if (source_ == nullptr) {
    step = count_in(state, "index");
    if (step > plan_.length(0)) {
      throw Error(Code::kInvalidArgument, "restore", "the state is beyond the source's end");
    }
  } else {
    step = count_in(state, "ordinal");
    source_->load(epoch, member_of(state, "state"));
  }
  go_to(epoch, step);
  schema_.load(state);
}

// Nothing is made before the first element is asked for.
void SectionReader::go_to(uint64_t epoch, uint64_t step) {
  epoch_ = epoch;
  next_ = ordinal_ = step;
  read_.clear();
  taken_.clear();
  taken_bytes_ = 0;
  schema_.begin();
  feed_.seek({epoch, 0, step});
  begun_ = false;
  asked_ = over_ = false;
  part_.is(0);
  part_.wait(false);
}

State SectionReader::save() const {
  State state = place();
  schema_.save(state);
  return state;
}

State SectionReader::place() const {
  if (source_ == nullptr) return {{"index", next_}};
  if (!read_.empty()) return read_.front().before;
  return {{"ordinal", ordinal_}, {"state", source_->save()}};
}

void SectionReader::let_go() {
  if (taken_.empty()) return;
  taken_.clear();
  taken_bytes_ = 0;
  part_.is(feed_.in_flight() * each());
  // There may be room now: but others come first, if they wait longer.
  part_.wait(empty() && part_.may_have(each()));
  budget_.share_out();
}

uint32_t SectionReader::next(uint32_t most, Chunk& out) {
  taken_.clear();
  taken_bytes_ = 0;
  asked_ = true;
  count();
  if (!std::exchange(begun_, true)) feed_.begin_epoch();
  const uint64_t enough = sections_.chunk_bytes();
  for (bool over = false; !over && taken_.size() < most && taken_bytes_ <= enough;) {
    if (lane_.closed()) throw Error(Code::kClosed, "stream", "the loader was closed");
    const Feed::Poll found = feed_.poll(epoch_);
    if (take_read()) continue;
    switch (found) {
      case Feed::Poll::kBatch:
        take_ticket();
        break;
      case Feed::Poll::kWait:
        over = !taken_.empty();
        if (!over) wait();
        break;
      default:
        over = over_ = true;
        break;
    }
  }
  asked_ = false;
  budget_.saw_element(feed_.typical_bytes());
  count();
  budget_.share_out();
  const auto rows = static_cast<uint32_t>(taken_.size());
  if (rows == 0) return 0;
  out.reset(spec_, rows);
  for (uint32_t row = 0; row < rows; ++row) {
    auto& [block, position, result] = taken_[row];
    for (Failure& lost : result.notes) out.note(row, std::move(lost));
    if (result.failure) {
      out.fail(row, std::move(*result.failure));
      continue;
    }
    // Of all elements, and not only of those that happen to be there together.
    try {
      schema_.check(block.spec());
      settle_alike(block.spec(), out);
      block.view(0, out, row);
    } catch (const Error& error) {
      if (error.code() != Code::kInvalidArgument) throw;
      out.fail(row, schema_.failure(position, std::current_exception()));
    }
  }
  return rows;
}

void SectionReader::wait() {
  std::optional<StageClock::Waiting> waiting;
  if (own_.clock != nullptr) waiting.emplace(*own_.clock);
  feed_.wait(-1);
}

// What stands in an element's place, if it is that one's turn.
bool SectionReader::take_read() {
  if (!ready()) return false;
  Read& next = read_.front();
  if (next.thrown) {
    if (!taken_.empty()) return false;
    std::rethrow_exception(next.thrown);
  }
  Taken& taken = taken_.emplace_back();
  if (next.failure) {
    taken.result = {std::move(next.failure), std::move(next.notes)};
    read_.pop_front();
    return true;
  }
  // What was left out behind the last element, all in one row: there is no state in between.
  taken.result.failure = std::move(next.notes.front());
  taken.result.failure->leave_out();
  next.notes.erase(next.notes.begin());
  taken.result.notes = std::move(next.notes);
  read_.pop_front();
  return true;
}

void SectionReader::take_ticket() {
  Post& post = feed_.current();
  Unit& unit = lane_.unit_at(feed_.current_seq(), 0);
  Taken& taken = taken_.emplace_back();
  asked_ = false;
  taken.position = post.step;
  const uint64_t bytes = unit.bytes;
  if (unit.kind == ResultKind::kRows) {
    taken.result = sections_.inlet().take(unit);
    std::span<const std::byte> layout(post.layout, post.layout_length);
    if (told_ == nullptr || !std::ranges::equal(told_->bytes(), layout)) {
      told_ = std::make_shared<ElementSpec>(layout);
    }
    const uint64_t needed = post.needed_bytes;
    taken_bytes_ += bytes;
    Lease lease = feed_.take_rows();
    taken.block = Block(told_, 1, lease.data(), needed, lease.owner());
    feed_.deliver(bytes, 1);
  } else {
    taken.result = failure_of(unit, post.step);
    feed_.skip();
  }
  if (source_ != nullptr) {
    auto& notes = taken.result.notes;
    notes.insert(notes.begin(), std::make_move_iterator(read_.front().notes.begin()),
                 std::make_move_iterator(read_.front().notes.end()));
    read_.pop_front();
  }
  ++next_;
}

SectionResult SectionReader::failure_of(Unit& unit, uint64_t position) {
  if (unit.kind == ResultKind::kError) return sections_.inlet().take(unit);
  if (lane_.closed()) throw Error(Code::kClosed, "stream", "the loader was closed");
  const std::string element = "element " + std::to_string(position) + " of a stage in front of a " +
                              "stream's (epoch " + std::to_string(epoch_) + ") ";
  Failure failure{"stream", position, nullptr};
  failure.unsure = true;
  if (unit.kind == ResultKind::kTimeout) {
    failure.error = std::make_exception_ptr(
        Error(Code::kTimeout, "Loader", element + "took longer than timeout allows"));
  } else if (unit.kind == ResultKind::kLost) {
    failure.error = std::make_exception_ptr(
        Error(Code::kWorkerLost, "Loader",
              element + "lost its worker process three times (killed, crashed or out of memory)"));
  } else {
    std::string text(reinterpret_cast<const char*>(unit.packet), unit.length);
    failure.error = std::make_exception_ptr(Error(Code::kOutOfMemory, "Loader", text));
  }
  unit.kind = ResultKind::kNone;
  return {std::move(failure), {}};
}

}  // namespace penstock
