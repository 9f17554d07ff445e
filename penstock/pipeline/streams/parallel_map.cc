#include "penstock/pipeline/streams/parallel_map.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/json.h"
#include "penstock/pipeline/scheduler/scheduler.h"
#include "penstock/pipeline/stages/gather_chunk.h"
#include "penstock/pipeline/stages/schema_checker.h"
#include "penstock/pipeline/stages/stage.h"
#include "penstock/pipeline/stages/stage_clock.h"
#include "penstock/pipeline/stages/stream_chunk.h"
#include "penstock/pipeline/streams/stream_input.h"
#include "penstock/pipeline/streams/streams.h"

namespace penstock {

// Few enough that little memory is used ahead for large elements, and enough that workers do not
// idle while the stream reader packs a batch.
uint32_t ParallelMaps::queue_of(uint32_t workers) { return std::max(4 * workers, 16u); }

uint64_t ParallelMaps::unknown_bytes() const {
  constexpr uint64_t kMin = 64 << 10, kMax = 4 << 20;
  return std::max(element_bytes_, std::clamp(budget_.total() / 16, kMin, kMax));
}

void ParallelMaps::on_grant() {
  granted_.store(true, std::memory_order_release);
  if (wake_) wake_();
}

void ParallelMaps::use_grants() {
  if (reading_ != 0) return;
  const Reading reading(*this);
  while (granted_.exchange(false, std::memory_order_acq_rel)) {
    for (size_t i = 0; i < readers_.size(); ++i) readers_[i]->use_grant();
  }
}

std::vector<uint32_t> ParallelMaps::lanes_for(size_t maps, uint32_t workers) {
  if (workers == 0) return {};  // the consumer makes all elements in line
  return std::vector<uint32_t>(maps, 2 * (queue_of(workers) + workers) + 2);
}

namespace {

// Takes the elements of one parallel map in order, while workers make later ones. Each ticket is
// one element: an element of an indexed stage, by its position, or an element of a stream with a
// tail, whose input was read ahead. For streams the place before each pending element is stored, so
// save() is exact however far ahead the workers are. Runs on the stream reader's thread.
class ParallelMapReader : public ElementReader, private Tickets, private ParallelMaps::Reader {
 public:
  ParallelMapReader(uint32_t number, SpecRef spec, const Context& context);
  ~ParallelMapReader() override;

  void begin(uint64_t epoch) override;
  // Returns the elements that are ready; waits for at least one. Error kClosed: the ring was
  // closed.
  uint32_t next(uint32_t most, Chunk& out) override;
  void release() override;
  // {"index": i}, or {"ordinal": n, "state": the stream's state}, with SchemaChecker's members.
  // Independent of pending elements.
  State save() const override;
  void load(uint64_t epoch, const State& state) override;

 private:
  // An item read from the stream, in order: an element whose ticket is posted, or a failure.
  struct Read {
    State before;
    bool posted = false;
    std::vector<Failure> notes;      // losses before the element
    std::optional<Failure> failure;  // of the element
    std::exception_ptr thrown;       // the error that ended the stream
  };
  struct Taken {
    Block block;            // no rows: the element failed
    uint64_t position = 0;  // step of the ticket
    ParallelMapResult result;
  };

  std::optional<uint64_t> steps(uint64_t epoch, uint64_t base) override;
  Described describe(const Position& at, BatchEntry& entry) override;
  uint64_t input_bytes() const override;
  // The function's result, until it is written into its slot.
  uint64_t work_bytes(uint64_t element_bytes) const override { return element_bytes; }
  uint64_t kept_bytes() const override { return taken_bytes_; }
  void use_grant() override;
  bool ready() override { return !read_.empty() && !read_.front().posted; }

  State place() const;
  Described read(BatchEntry& entry);
  void wait();
  bool take_read();
  void take_ticket();
  ParallelMapResult failure_of(Task& task, uint64_t position);
  void go_to(uint64_t epoch, uint64_t step);

  ParallelMaps& maps_;
  const Built& made_;
  TicketRing& lane_;
  SpecRef spec_;
  SchemaChecker schema_;
  std::atomic<bool> granted_ = false;  // bytes that the scheduler waited for
  Scheduler scheduler_;
  uint64_t epoch_ = 0;
  uint64_t next_ = 0;  // index of the next element, counting failed ones; indexed stages only
  bool begun_ = true;  // Scheduler::begin_epoch() was called
  std::vector<Taken> taken_;  // elements that the last chunk has views of
  uint64_t taken_bytes_ = 0;  // bytes of taken_
  uint64_t input_bytes_ = 0;  // of the largest stream chunk
  SpecRef inferred_;          // spec of the last element

  // For a stream with a tail:
  Scratch scratch_;
  Context own_;
  std::unique_ptr<ElementReader> source_;
  std::optional<GatherChunk> gathered_;
  uint64_t ordinal_ = 0;  // of the next element to read
  std::deque<Read> read_;
};

ParallelMapReader::ParallelMapReader(uint32_t number, SpecRef spec, const Context& context)
    : maps_(*context.parallel_maps),
      made_(maps_.made(number)),
      lane_(maps_.lane(number)),
      spec_(std::move(spec)),
      schema_(spec_, "stream", made_.chain().decision()),
      scheduler_(
          lane_, maps_.arena(), *this, maps_.budget(),
          [&] {
            Scheduler::Options of;
            of.queue = maps_.queue();
            of.workers = maps_.workers();
            of.pause_at_epochs = true;
            of.slow_start = true;
            of.on_grant = [this] {
              granted_.store(true, std::memory_order_release);
              maps_.on_grant();
            };
            return of;
          }(),
          [this](Task& task) { maps_.results().take(task); }),
      own_(context.over(scratch_)) {
  maps_.add_reader(this);
  if (made_.stream == nullptr) return;
  source_ = made_.stream->open(own_);
  gathered_.emplace(own_, *made_.stream, &maps_.arena(), maps_.budget().total());
}

// REQUIRED: the workers have ended, or the ring is closed, so that no further task finishes.
ParallelMapReader::~ParallelMapReader() {
  maps_.remove_reader(this);
  scheduler_.drain();
}

// The scheduler estimates a batch of unknown size to be as large as its input.
uint64_t ParallelMapReader::input_bytes() const {
  return scheduler_.sized() ? input_bytes_ : (input_bytes_ + maps_.unknown_bytes()) / 2;
}

void ParallelMapReader::use_grant() {
  if (granted_.exchange(false, std::memory_order_acq_rel)) scheduler_.make_ahead();
}

// ---- tickets -----------------------------------------------------------------------------------

std::optional<uint64_t> ParallelMapReader::steps(uint64_t, uint64_t base) {
  if (source_ != nullptr) return std::nullopt;
  return made_.chain().length(base);
}

Tickets::Described ParallelMapReader::describe(const Position&, BatchEntry& entry) {
  entry.rows = 1;
  if (source_ == nullptr) return Described::kPosted;
  if (!read_.empty() && read_.back().thrown) return Described::kFailed;
  const ParallelMaps::Reading reading(maps_);
  Read& next = read_.emplace_back();
  try {
    next.before = {{"ordinal", ordinal_}, {"state", source_->save()}};
    return read(entry);
  } catch (...) {
    next.thrown = std::current_exception();
    return Described::kFailed;
  }
}

// Reads the input of one element of the tail, or a failure in its place.
Tickets::Described ParallelMapReader::read(BatchEntry& entry) {
  const uint64_t per = made_.per_output, first = ordinal_ * per;
  scratch_.empty();
  const GatherChunk::Unused unused(*gathered_);
  GatherChunk::Gathered gathered =
      gathered_->gather(*source_, {per, per, first, GatherChunk::Failures::kInPlace});
  Read& next = read_.back();
  for (auto& lost : gathered.left_out) next.notes.push_back(std::move(lost.failure));
  if (!gathered.failed.empty()) {
    // The whole element of the tail fails; its other input elements are dropped.
    next.failure = std::move(gathered.failed.front().failure);
    return Described::kNotYet;
  }
  if (gathered.rows == 0 || (gathered.rows < per && made_.drop_partial)) {
    if (next.notes.empty()) read_.pop_back();
    return Described::kEnd;
  }
  input_bytes_ = std::max(input_bytes_, StreamChunk::bytes_of(*gathered_));
  source_->release();
  entry.input_offset = StreamChunk::put(*gathered_, first, maps_.arena());
  next.posted = true;
  ++ordinal_;
  return Described::kPosted;
}

// ---- elements ----------------------------------------------------------------------------------

void ParallelMapReader::begin(uint64_t epoch) {
  const ParallelMaps::Reading reading(maps_);
  if (source_ != nullptr) source_->begin(epoch);
  go_to(epoch, 0);
}

void ParallelMapReader::load(uint64_t epoch, const State& state) {
  const ParallelMaps::Reading reading(maps_);
  uint64_t step = 0;
  if (source_ == nullptr) {
    step = count_in(state, "index");
    if (step > made_.chain().length(0)) {
      throw refuse_restore("the state is beyond the source's end");
    }
  } else {
    step = count_in(state, "ordinal");
    source_->load(epoch, member_of(state, "state"));
  }
  go_to(epoch, step);
  schema_.load(state);
}

// Elements are started only after next() was called.
void ParallelMapReader::go_to(uint64_t epoch, uint64_t step) {
  epoch_ = epoch;
  next_ = ordinal_ = step;
  read_.clear();
  taken_.clear();
  taken_bytes_ = 0;
  schema_.begin();
  scheduler_.seek({epoch, 0, step});
  begun_ = false;
}

State ParallelMapReader::save() const {
  State state = place();
  schema_.save(state);
  return state;
}

State ParallelMapReader::place() const {
  if (source_ == nullptr) return {{"index", next_}};
  if (!read_.empty()) return read_.front().before;
  return {{"ordinal", ordinal_}, {"state", source_->save()}};
}

void ParallelMapReader::release() {
  if (taken_.empty()) return;
  taken_.clear();
  taken_bytes_ = 0;
  scheduler_.make_ahead();
  maps_.use_grants();
}

uint32_t ParallelMapReader::next(uint32_t most, Chunk& out) {
  taken_.clear();
  taken_bytes_ = 0;
  if (!std::exchange(begun_, true)) scheduler_.begin_epoch();
  const uint64_t enough = own_.chunk_bytes();
  for (bool over = false; !over && taken_.size() < most && taken_bytes_ <= enough;) {
    if (lane_.closed()) throw Error(Code::kClosed, "stream", "the loader was closed");
    const Scheduler::Poll found = scheduler_.poll(epoch_);
    if (take_read()) continue;
    switch (found) {
      case Scheduler::Poll::kBatch:
        take_ticket();
        break;
      case Scheduler::Poll::kWait:
        over = !taken_.empty();
        if (!over) wait();
        break;
      default:
        over = true;
        break;
    }
  }
  maps_.saw_element(scheduler_.typical_bytes());
  maps_.use_grants();
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
    // The schema covers all elements so far, not only those of this chunk.
    try {
      schema_.check(block.spec());
      settle_schema(block.spec(), out);
      block.view(0, out, row);
    } catch (const Error& error) {
      if (error.code() != Code::kInvalidArgument) throw;
      out.fail(row, schema_.failure(position, std::current_exception()));
    }
  }
  return rows;
}

void ParallelMapReader::wait() {
  std::optional<StageClock::Waiting> waiting;
  if (own_.clock != nullptr) waiting.emplace(*own_.clock);
  scheduler_.wait(-1);
}

// Takes the next item if it is a failure instead of an element.
bool ParallelMapReader::take_read() {
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
  // All losses after the last element go into one row, because there is no state between them.
  taken.result.failure = std::move(next.notes.front());
  taken.result.failure->skip_if_undecided();
  next.notes.erase(next.notes.begin());
  taken.result.notes = std::move(next.notes);
  read_.pop_front();
  return true;
}

void ParallelMapReader::take_ticket() {
  BatchEntry& entry = scheduler_.current();
  Task& task = lane_.task_at(scheduler_.current_seq(), 0);
  Taken& taken = taken_.emplace_back();
  taken.position = entry.step;
  const uint64_t bytes = task.bytes;
  if (task.kind == ResultKind::kRows) {
    taken.result = maps_.results().take(task);
    std::span<const std::byte> layout(entry.layout, entry.layout_length);
    if (inferred_ == nullptr || !std::ranges::equal(inferred_->bytes(), layout)) {
      inferred_ = std::make_shared<ElementSpec>(layout);
    }
    const uint64_t needed = entry.needed_bytes;
    taken_bytes_ += bytes;
    Lease lease = scheduler_.take_rows();
    taken.block = Block(inferred_, 1, lease.data(), needed, lease.owner());
    scheduler_.deliver(bytes, 1);
  } else {
    taken.result = failure_of(task, entry.step);
    scheduler_.skip();
  }
  if (source_ != nullptr) {
    auto& notes = taken.result.notes;
    notes.insert(notes.begin(), std::make_move_iterator(read_.front().notes.begin()),
                 std::make_move_iterator(read_.front().notes.end()));
    read_.pop_front();
  }
  ++next_;
}

ParallelMapResult ParallelMapReader::failure_of(Task& task, uint64_t position) {
  if (task.kind == ResultKind::kError) return maps_.results().take(task);
  if (lane_.closed()) throw Error(Code::kClosed, "stream", "the loader was closed");
  const std::string element = "element " + std::to_string(position) + " of a stage in front of a " +
                              "stream's (epoch " + std::to_string(epoch_) + ") ";
  Failure failure{"stream", position, nullptr};
  failure.provisional = true;
  if (task.kind == ResultKind::kTimeout) {
    failure.error = std::make_exception_ptr(
        Error(Code::kTimeout, "Loader", element + "took longer than timeout allows"));
  } else if (task.kind == ResultKind::kLost) {
    failure.error = std::make_exception_ptr(
        Error(Code::kWorkerLost, "Loader",
              element + "lost its worker process three times (killed, crashed or out of memory)"));
  } else {
    std::string text(reinterpret_cast<const char*>(task.packet), task.length);
    failure.error = std::make_exception_ptr(Error(Code::kOutOfMemory, "Loader", text));
  }
  task.kind = ResultKind::kNone;
  return {std::move(failure), {}};
}

class ParallelMapStream : public Streamed {
 public:
  ParallelMapStream(uint32_t number, StreamedRef serial)
      : number_(number), serial_(std::move(serial)) {}

  SpecRef spec() const override { return serial_->spec(); }
  std::optional<uint64_t> length() const override { return serial_->length(); }
  // The thread that takes the workers' elements also takes their exceptions, which may be Python's.
  bool python() const override { return serial_->python(); }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    if (context.parallel_maps == nullptr) return serial_->reader(context);
    return std::make_unique<ParallelMapReader>(number_, spec(), context);
  }

 private:
  uint32_t number_;
  StreamedRef serial_;
};

}  // namespace

StreamedRef parallel_map_stream(uint32_t number, StreamedRef serial) {
  return std::make_shared<ParallelMapStream>(number, std::move(serial));
}

}  // namespace penstock
