#include "penstock/pipeline/engine/plan_output.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/json.h"
#include "penstock/pipeline/streams/streams.h"

namespace penstock {

namespace {

// Finds the gaps after the granules' rows; each granule has its rows at its front. `losses`
// ascend.
std::vector<uint32_t> gaps_of(const BatchEntry& entry, const std::vector<Loss>& losses) {
  std::vector<uint32_t> gaps;
  const uint32_t share = entry.granule_rows();
  for (auto loss = losses.begin(); loss != losses.end();) {
    const uint32_t end = std::min((loss->row / share + 1) * share, entry.rows);
    auto next = loss;
    while (next != losses.end() && next->row < end) ++next;
    for (auto left = next - loss; left > 0; --left) {
      gaps.push_back(end - static_cast<uint32_t>(left));
    }
    loss = next;
  }
  return gaps;
}

// Error kInvalidArgument: `state` is of another plan; the text names the stage that differs.
void check_same_plan(const LoaderState& state, const Plan& plan, uint64_t seed) {
  const std::vector<std::string>& ours = plan.titles();
  const size_t stages = std::max(state.plan.size(), ours.size());
  for (size_t i = 0; i < stages; ++i) {
    std::string theirs = i < state.plan.size() ? state.plan[i] : "nothing";
    std::string own = i < ours.size() ? ours[i] : "nothing";
    if (theirs != own) {
      throw refuse_restore("the state was taken with " + theirs + " as stage " + std::to_string(i) +
                           ", this one has " + own);
    }
  }
  if (state.seed != seed) {
    throw refuse_restore("the state was taken with seed=" + std::to_string(state.seed) +
                         ", this one was built with seed=" + std::to_string(seed) +
                         "; make them equal");
  }
  if (state.length != plan.all()) {
    throw refuse_restore("the state was taken with " + std::to_string(state.length) +
                         " elements in an epoch, this one has " + std::to_string(plan.all()) +
                         "; has its source changed?");
  }
  if (state.world != plan.world() && !plan.shard_moves()) {
    throw refuse_restore(
        "the state was taken among " + std::to_string(state.world) + " ranks, this one is one of " +
        std::to_string(plan.world()) +
        "; that needs nothing but map, enumerate, batch and prefetch above the shard");
  }
}

// Error kInvalidArgument: the epoch has only `all` batches or elements (`what`), fewer than `ranks`
// ranks have delivered according to the state. Exactly `all` is the end of the epoch.
void check_within_epoch(uint64_t delivered, uint64_t all, uint64_t ranks, const char* what) {
  // The last round of several ranks may be padded.
  if (delivered <= all || delivered - all < ranks) return;
  throw refuse_restore("the state says that " + std::to_string(delivered) + " " + what +
                       " of an epoch were delivered, and there are " + std::to_string(all));
}

}  // namespace

bool PlanOutput::remake_if_mismatched(TicketRing& ring) {
  const uint64_t seq = scheduler_.current_seq();
  const uint32_t granules = ring.granules_at(seq);
  uint32_t g = 0;
  while (g < granules && ring.task_at(seq, g).kind != ResultKind::kMismatch) ++g;
  if (g == granules) return false;
  tickets_.disable_granules();
  scheduler_.seek(scheduler_.position(), scheduler_.ahead());
  return true;
}

PlanOutput::Said PlanOutput::gather(TicketRing& ring,
                                    const std::function<std::vector<Loss>(Task&)>& losses_in) {
  const uint64_t seq = scheduler_.current_seq();
  Said said;
  for (uint32_t g = 0, granules = ring.granules_at(seq); g < granules; ++g) {
    Task& task = ring.task_at(seq, g);
    said.bytes += task.bytes;
    std::vector<Loss> losses = losses_in(task);
    said.losses.insert(said.losses.end(), std::make_move_iterator(losses.begin()),
                       std::make_move_iterator(losses.end()));
  }
  std::ranges::stable_partition(said.losses, [](const Loss& loss) { return loss.gap; });
  return said;
}

std::optional<PlanOutput::Item> PlanOutput::take(uint64_t bytes, uint32_t worker,
                                                 std::vector<Loss> losses) {
  BatchEntry& entry = scheduler_.current();
  std::vector<Loss> all;
  counted_ = {entry.epoch, {}};
  if (!losses.empty()) {
    all = losses;
    std::erase_if(losses, [](const Loss& loss) { return !loss.gap; });
  }
  const auto beyond = [&](const Loss& loss) { return loss.row >= entry.rows; };
  if (losses.size() > entry.rows || std::ranges::any_of(losses, beyond)) {
    throw Error(Code::kDataLoss, "Loader", "a worker reported rows that its batch does not have");
  }
  if (plan_->batched()) {
    counted_.losses = std::move(all);
    const uint64_t rows = entry.rows - losses.size();
    if (rows == 0) {
      scheduler_.skip();
      return std::nullopt;
    }
    Item batch = take_memory(entry, losses);
    batch.rows = rows;
    tickets_.saw(spec_->fixed());
    scheduler_.deliver(bytes, rows);
    return batch;
  }
  const uint64_t skipped = this->skipped();  // losses before these were counted already
  hold(entry, worker, losses);
  std::ranges::stable_sort(all, {}, &Loss::row);
  std::erase_if(all, [&](const Loss& loss) { return loss.row < skipped; });
  uncounted_.assign(std::make_move_iterator(all.begin()), std::make_move_iterator(all.end()));
  if (held_.rows == 0) count_before(pending_ ? skip_ : UINT64_MAX);
  if (pending_) {
    // The ticket is not delivered: the position stays.
  } else if (held_.rows == 0) {
    scheduler_.skip();
  } else {
    scheduler_.deliver(bytes, held_.rows - used_);
  }
  return take_held();
}

// Moves the losses before `row` to counted_. A loss at a row that exists happened before that row.
void PlanOutput::count_before(uint64_t row) {
  while (!uncounted_.empty() && uncounted_.front().row < row) {
    if (uncounted_.front().error == nullptr) {
      counted_.losses.push_back(std::move(uncounted_.front()));
    }
    uncounted_.pop_front();
  }
}

Block PlanOutput::Item::batch() const {
  Block block(spec, laid_out, data, bytes, owner);
  return rows == laid_out ? block : block.rows(0, rows);
}

PlanOutput::Item PlanOutput::take_memory(BatchEntry& entry, const std::vector<Loss>& losses) {
  std::span<const std::byte> layout(entry.layout, entry.layout_length);
  if (spec_ == nullptr || spec_->bytes().size() != layout.size() ||
      std::memcmp(spec_->bytes().data(), layout.data(), layout.size()) != 0) {
    spec_ = std::make_shared<ElementSpec>(layout);
  }
  const uint64_t rows = entry.rows, bytes = entry.needed_bytes;
  std::vector<uint32_t> gaps;
  if (!losses.empty() && entry.granules.load(std::memory_order_relaxed) > 1) {
    gaps = gaps_of(entry, losses);
  }
  Lease lease = scheduler_.take_rows();
  if (bytes > lease.bytes()) {
    throw Error(Code::kDataLoss, "Loader", "a batch that is larger than its memory");
  }
  if (!gaps.empty()) BlockLayout(*spec_, rows).fixed().compact_rows(lease.data(), gaps);
  return {spec_, rows, rows, lease.data(), bytes, lease.owner(), std::nullopt, {}};
}

// Holds the ticket's elements up to the first one whose error is to be raised, without `losses` and
// without elements delivered before.
void PlanOutput::hold(BatchEntry& entry, uint32_t worker, const std::vector<Loss>& losses) {
  // Members are changed only at the end, because taking the block may throw.
  std::vector<uint32_t> places;
  std::optional<LoaderFailure> pending;
  const uint64_t skip = skipped();
  // A ticket that is made again may have fewer elements than were delivered. Then the error takes
  // the place of the next element.
  uint64_t skip_next = skip > entry.rows ? skip - entry.rows : 0;
  auto loss = losses.begin();
  for (uint32_t place = 0; place < entry.rows; ++place) {
    if (loss == losses.end() || loss->row != place) {
      places.push_back(place);
      continue;
    }
    if (loss->error != nullptr && place >= skip) {
      pending = {entry.epoch, entry.step, loss->index, loss->stage, worker, loss->error};
      skip_next = place;
      break;
    }
    ++loss;
  }
  uint64_t used = 0;
  while (used < places.size() && places[used] < skip) ++used;
  const uint64_t epoch = entry.epoch, base = entry.base, step = entry.step;
  Item held;
  if (used != places.size()) {
    held = take_memory(entry);
    held.rows = places.size();
    held.elements = std::make_shared<const Block>(held.batch());
  }
  held_ = std::move(held);
  held_epoch_ = epoch;
  held_base_ = base;
  held_step_ = step;
  places_ = std::move(places);
  used_ = used;
  pending_ = std::move(pending);
  skip_ = skip_next;
  skip_epoch_ = epoch;
}

std::optional<PlanOutput::Item> PlanOutput::take_held() {
  if (held_.rows == 0) return std::nullopt;
  Item item;
  item.row = used_++;
  item.elements = held_.elements;
  counted_.epoch = held_epoch_;
  if (used_ == held_.rows) {
    held_ = Item();
    count_before(pending_ ? skip_ : UINT64_MAX);
  } else {
    count_before(uint64_t{places_[used_ - 1]} + 1);
  }
  return item;
}

std::optional<LoaderFailure> PlanOutput::take_failure() {
  if (held_.rows != 0) return std::nullopt;
  return std::exchange(pending_, std::nullopt);
}

void PlanOutput::drop_held() {
  held_ = Item();
  pending_.reset();
  skip_ = 0;
  uncounted_.clear();
  tickets_.drop_leftover();
}

void PlanOutput::close() {
  if (!last_) last_ = state();
  drop_held();
}

// ---- place -------------------------------------------------------------------------------------

void PlanOutput::arrived(const Place& place) {
  skip_ = place.skip;
  skip_epoch_ = place.position.epoch;
  if (place.stream) tickets_.restore(place.position, *place.stream);
}

// In a stream's epoch, batches or elements are counted by their ordinals.
LoaderState PlanOutput::stream_state() const {
  const bool held = held_.rows != 0;
  const Position at = position();
  const uint64_t used = held ? places_[used_ - 1] + 1 : skipped();
  StreamReader::Place place = tickets_.place_at(at);
  LoaderState state;
  state.epoch = at.epoch;
  const uint64_t per = plan_->batched() ? plan_->stream_rows() : plan_->per_output();
  const uint64_t ordinal = place.ordinal + place.used + used * (plan_->batched() ? 0 : per);
  state.batches = ordinal / per + (ordinal % per != 0);
  if (!place.state && ordinal == 0) return state;
  State stream = {{"ordinal", place.ordinal}, {"used", place.used}, {"taken", used}};
  if (place.state) stream["state"] = *place.state;
  if (plan_->skip_changes_stream()) stream["skip"] = true;
  state.stream = stream.dump();
  return state;
}

PlanOutput::Place PlanOutput::place_in_stream(const LoaderState& state) const {
  if (!state.ahead.empty()) throw refuse_restore("a stream's batches come in order only");
  Place place{{state.epoch, 0, state.batches}, {}, 0, StreamReader::Place{}};
  if (state.stream.empty()) {
    if (state.batches != 0) throw refuse_restore("the state says nothing of its stream");
    return place;
  }
  const State stream = State::parse(state.stream, nullptr, false);
  place.stream->ordinal = count_in(stream, "ordinal");
  place.stream->used = count_in(stream, "used");
  place.skip = count_in(stream, "taken");
  if (stream.contains("skip") != plan_->skip_changes_stream()) {
    throw refuse_restore(
        std::string("the state was saved with ") +
        (plan_->skip_changes_stream() ? "another on_error than 'skip'" : "on_error='skip'") +
        ", which changes where elements of this stream are made: restore it with that");
  }
  if (stream.contains("state")) {
    place.stream->state = std::make_shared<State>(stream["state"]);
  }
  // A step's number is that of its batch, or that of its first element.
  const uint64_t per = plan_->batched() ? plan_->stream_rows() : plan_->per_output();
  const uint64_t first = place.stream->ordinal + place.stream->used;
  place.position.step = first / per + (first % per != 0);
  if (const auto all = plan_->known_length()) {
    check_within_epoch(std::max(state.batches, place.position.step), *all, 1, items());
  }
  return place;
}

LoaderState PlanOutput::state() const {
  if (last_) return *last_;
  LoaderState state = plan_->stream() != nullptr ? stream_state() : indexed_state();
  state.seed = seed_;
  state.plan = plan_->titles();
  state.world = plan_->world();
  state.length = plan_->all();
  return state;
}

LoaderState PlanOutput::indexed_state() const {
  const Position& at = scheduler_.position();
  const uint64_t per = plan_->rows_per_ticket();
  LoaderState state;
  const uint64_t world = plan_->world();
  state.epoch = at.epoch;
  state.base = at.base;
  uint64_t own = at.step * per + skipped();
  if (held_.rows != 0) {
    state.epoch = held_epoch_;
    state.base = held_base_;
    own = held_step_ * per + places_[used_ - 1] + 1;
  }
  state.batches = state.base + own * world;
  for (uint64_t step : scheduler_.ahead()) state.ahead.push_back(at.base + step * per * world);
  return state;
}

PlanOutput::Place PlanOutput::place_of(const LoaderState& state) const {
  check_same_plan(state, *plan_, seed_);
  if (plan_->stream() != nullptr) return place_in_stream(state);
  const uint64_t per = plan_->rows_per_ticket(), world = plan_->world();
  if (const auto all = plan_->all_batches()) {
    check_within_epoch(state.batches, *all, std::max<uint64_t>(world, state.world), items());
  }
  if (state.world != world) {
    // All ranks together have delivered this many batches; the rest is divided among the present
    // ranks.
    if (!state.ahead.empty()) {
      throw refuse_restore("a state of an unordered feed restores at its own shard only");
    }
    return {{state.epoch, state.batches, 0}, {}, 0, std::nullopt};
  }
  auto own = [&](uint64_t batches) {
    if (batches < state.base || (batches - state.base) % world != 0) {
      throw refuse_restore("the state names batches that cannot be");
    }
    return (batches - state.base) / world;
  };
  const uint64_t taken = own(state.batches), all = plan_->length(state.base);
  check_within_epoch(taken, all, 1, items());
  Place place{{state.epoch, state.base, taken / per}, {}, taken % per, std::nullopt};
  for (uint64_t batches : state.ahead) {
    const uint64_t ahead = own(batches);
    if (ahead < taken || ahead >= all || ahead % per != 0) {
      throw refuse_restore("'ahead' names what cannot be ahead");
    }
    place.ahead.insert(ahead / per);
  }
  return place;
}

}  // namespace penstock
