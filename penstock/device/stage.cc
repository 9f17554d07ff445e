#include "penstock/device/stage.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "penstock/base/clock.h"

namespace penstock::device {
namespace {

constexpr unsigned kNonBlocking = 1;  // of a stream: it does not wait for the legacy default stream
constexpr unsigned kPortable = 1;     // pinned memory for all contexts
constexpr size_t kStepsAtOnce = 32;   // that are read from the timeline
constexpr size_t kLargeUnit = size_t{2} << 20;
constexpr size_t kSmallUnit = size_t{64} << 10;
constexpr size_t kAll = SIZE_MAX;
constexpr size_t kSpareSlots = 2;       // besides those of batches that are held
constexpr uint64_t kTrimBatches = 256;  // slots that so many batches did not need are freed

// A little more than asked for, so that batches of nearly one size use the same slots.
size_t slot_size(size_t bytes) {
  const size_t unit = bytes < kLargeUnit ? kSmallUnit : kLargeUnit;
  return (std::max<size_t>(bytes, 1) + unit - 1) / unit * unit;
}

std::string mib(size_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

Stream as_stream(int64_t number) {
  return reinterpret_cast<Stream>(static_cast<uintptr_t>(number));
}

}  // namespace

// A stream that uses a slot.
struct Stage::Use {
  Stream stream = nullptr;
  std::thread::id thread;    // that took it: the per-thread default stream belongs to one
  Mark* finished = nullptr;  // recorded when the batch was released
  Mark* begun = nullptr;     // of the step, when the batch was taken; null: its end is known
};

struct Stage::Slot {
  enum class State { kFree, kStaged, kReleased };

  State state = State::kFree;
  DeviceMemory memory = 0;
  size_t bytes = 0;
  Mark* begun = nullptr;  // before the copy; null: its end is known
  Mark* copied = nullptr;
  bool in_flight = false;                     // the copy is not known to have finished
  std::vector<std::shared_ptr<void>> owners;  // of the memory that the copy reads
  std::byte* pinned = nullptr;                // the batch's arrays side by side, if they had to be
  size_t pinned_bytes = 0;
  std::vector<std::byte> pageable;  // instead of `pinned`, if no memory can be pinned
  std::vector<Use> uses;
  bool unknown_use = false;  // a consumer that does its own ordering, on streams unknown
  bool taken = false;
  uint64_t released = 0;  // its place among releases
  uint64_t batch = 0;     // the number of the batch in it
};

// Makes the device's context current on the calling thread, as long as it exists. On a thread of a
// framework it is current already.
class Stage::Current {
 public:
  explicit Current(const Stage& stage) : driver_(*stage.driver_) {
    Context* before = nullptr;
    result_ = driver_.current_context(&before);
    if (result_ != kSuccess || before == stage.context_) return;
    result_ = driver_.push_context(stage.context_);
    pushed_ = result_ == kSuccess;
  }
  ~Current() {
    Context* popped = nullptr;
    if (pushed_) driver_.pop_context(&popped);
  }
  Result result() const { return result_; }

 private:
  const Driver& driver_;
  bool pushed_ = false;
  Result result_;
};

std::shared_ptr<Stage> Stage::open(int device, const std::string& library) {
  std::shared_ptr<const Driver> driver = Driver::load(library);
  int count = 0;
  const std::string name = "cuda:" + std::to_string(device);
  driver->check(driver->device_count(&count), name, "cannot count devices");
  if (device < 0 || device >= count) {
    throw Error(Code::kNotFound, name,
                "there are " + std::to_string(count) +
                    " devices, numbered from 0; see CUDA_VISIBLE_DEVICES");
  }
  return std::make_shared<Stage>(Token{}, std::move(driver), device);
}

Stage::Stage(Token, std::shared_ptr<const Driver> driver, int ordinal)
    : driver_(std::move(driver)), ordinal_(ordinal), name_("cuda:" + std::to_string(ordinal)) {
  driver_->check(driver_->device_get(&handle_, ordinal), name_, "no such device");
  planner_.emplace(driver_, handle_);
  driver_->check(driver_->retain_primary(&context_, handle_), name_, "no context");
  Result result = kSuccess;
  {
    Current current(*this);
    const DuringCaptures allowed(*driver_);
    result = current.result();
    if (result == kSuccess) result = driver_->create_stream(&copies_, kNonBlocking);
    if (result == kSuccess) timeline_ = std::make_unique<Timeline>(*driver_, copies_);
  }
  if (result != kSuccess) {
    driver_->release_primary(handle_);
    driver_->fail(result, name_, "no stream for copies");
  }
  watch_forks();
}

Stage::~Stage() {
  ignore_forks();
  close();
  if (inherited_) return;
  {
    Current current(*this);
    timeline_->end();
    driver_->destroy_stream(copies_);
  }
  driver_->release_primary(handle_);
}

void Stage::check_usable() const {
  if (inherited_) {
    throw Error(Code::kInvalidArgument, name_,
                "the CUDA driver does not work in a forked child; start workers with "
                "start_method=\"spawn\", and feed the device from the process that began to");
  }
  std::lock_guard lock(mutex_);
  if (closed_) throw Error(Code::kClosed, name_, "the feed of this device was closed");
  if (!lost_.empty()) throw Error(Code::kSystem, name_, lost_);
}

void Stage::check(Result result, const char* what) {
  if (result == kSuccess) return;
  std::lock_guard lock(mutex_);
  if (lost_.empty()) {
    lost_ = std::string(what) + " failed: " + driver_->name_of(result) +
            ". The device or its driver is lost to this process; restart it from the last "
            "checkpoint";
  }
  throw Error(Code::kSystem, name_, lost_);
}

std::shared_ptr<Stage::Batch> Stage::put(std::vector<Tensor> tensors) {
  check_usable();
  Current current(*this);
  const DuringCaptures allowed(*driver_);
  check(current.result(), "making its context current");
  drop_copied(false);
  timeline_->read(kStepsAtOnce);
  trim();
  CopyPlan plan = planner_->plan(tensors);
  Slot& slot = free_slot(plan.bytes);
  order_behind_uses(slot);
  if (plan.gathered > 0) gather(slot, tensors, plan);
  slot.begun = timeline_->mark(copies_);
  for (const CopyPlan::Piece& piece : plan.pieces) {
    check(driver_->copy_to_device(slot.memory + piece.to, piece.from, piece.bytes, copies_),
          "a copy to the device");
  }
  check(timeline_->record(*slot.copied, copies_), "recording the end of a copy");
  std::vector<Tensor> arrays;
  arrays.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto* data =
        reinterpret_cast<std::byte*>(static_cast<uintptr_t>(slot.memory + plan.offsets[i]));
    arrays.push_back(Tensor::view(tensors[i].dtype(), tensors[i].shape(), data, nullptr));
  }
  auto batch = std::make_shared<Batch>(shared_from_this(), slot, std::move(arrays));
  std::lock_guard lock(mutex_);
  slot.state = Slot::State::kStaged;
  slot.in_flight = true;
  slot.taken = false;
  slot.owners = std::move(plan.owners);
  slot.batch = figures_.batches++;
  ++figures_.events;
  figures_.copies += plan.pieces.size();
  for (const CopyPlan::Piece& piece : plan.pieces) figures_.bytes += piece.bytes;
  return batch;
}

Stage::Slot& Stage::free_slot(size_t bytes) {
  Slot* slot = oldest_released(bytes);
  if (slot == nullptr) return add_slot(bytes);
  // Its own last copy reads memory that gather() writes. The consumer's stream waits for that copy,
  // the host has not.
  std::vector<std::shared_ptr<void>> owners;
  if (slot->in_flight) await_copy(*slot, owners);
  return *slot;
}

Stage::Slot* Stage::oldest_released(size_t bytes) {
  std::lock_guard lock(mutex_);
  Slot* oldest = nullptr;
  for (auto& slot : slots_) {
    if (slot->state == Slot::State::kStaged || slot->bytes < bytes) continue;
    if (slot->state == Slot::State::kFree) return slot.get();
    if (oldest == nullptr || slot->released < oldest->released) oldest = slot.get();
  }
  return oldest;
}

// REQUIRED: every idle slot is too small. The new one replaces the oldest of them, so batches of
// many sizes take no more slots than batches of one. Slots that are replaced grow by a quarter at
// least, so batches that grow replace few.
Stage::Slot& Stage::add_slot(size_t bytes) {
  const size_t least = slot_size(bytes);
  size_t wanted = least;
  std::vector<std::unique_ptr<Slot>> small = take_idle(1);
  if (!small.empty()) wanted = std::max(least, slot_size(small[0]->bytes + small[0]->bytes / 4));
  retire(std::move(small));
  auto slot = std::make_unique<Slot>();
  slot->bytes = wanted;
  Result result = driver_->allocate(&slot->memory, slot->bytes);
  if (result == kNoMemory) {
    retire(take_idle(kAll));
    slot->bytes = least;
    result = driver_->allocate(&slot->memory, slot->bytes);
  }
  if (result == kNoMemory) {
    size_t free_bytes = 0;
    size_t total = 0;
    driver_->memory_info(&free_bytes, &total);
    const size_t missing = slot->bytes > free_bytes ? slot->bytes - free_bytes : slot->bytes;
    size_t held = 0;
    {
      std::lock_guard lock(mutex_);
      for (auto& each : slots_) held += each->taken ? 1 : 0;
    }
    throw Error(Code::kOutOfMemory, name_,
                "a batch needs " + mib(slot->bytes) + " of device memory, and " + mib(missing) +
                    " are missing (" + mib(free_bytes) + " of " + mib(total) + " are free); " +
                    std::to_string(held) +
                    " earlier batches are still held. Drop batches after their step, or make "
                    "batches or the model smaller");
  }
  check(result, "allocating device memory");
  slot->copied = take_mark();
  std::lock_guard lock(mutex_);
  ++figures_.slots;
  figures_.slot_bytes += slot->bytes;
  slots_.push_back(std::move(slot));
  return *slots_.back();
}

// Takes idle slots out of the ring, those first that were released first.
std::vector<std::unique_ptr<Stage::Slot>> Stage::take_idle(size_t most) {
  std::lock_guard lock(mutex_);
  std::ranges::stable_sort(slots_, {}, [](const auto& each) { return each->released; });
  std::vector<std::unique_ptr<Slot>> idle;
  for (auto& each : slots_) {
    if (idle.size() == most) break;
    if (each->state != Slot::State::kStaged) idle.push_back(std::move(each));
  }
  std::erase(slots_, nullptr);
  return idle;
}

// Frees slots, after their copies and the work of their consumers have passed.
void Stage::retire(std::vector<std::unique_ptr<Slot>> slots) {
  std::vector<std::shared_ptr<void>> owners;
  for (auto& each : slots) {
    if (each->in_flight) await_copy(*each, owners);
    free_after_uses(*each);
  }
}

// Frees slots that no batch has needed for a while: the consumer had kept many batches.
void Stage::trim() {
  size_t surplus = 0;
  {
    std::lock_guard lock(mutex_);
    const auto staged = static_cast<size_t>(std::ranges::count_if(
        slots_, [](const auto& each) { return each->state == Slot::State::kStaged; }));
    most_staged_ = std::max(most_staged_, staged);
    if (figures_.batches < next_trim_) return;
    next_trim_ = figures_.batches + kTrimBatches;
    const size_t needed = std::exchange(most_staged_, staged) + kSpareSlots;
    surplus = slots_.size() - std::min(slots_.size(), needed);
  }
  retire(take_idle(surplus));
}

// Frees what a slot has, with the context current; failures have no remedy.
void Stage::free_memory(Slot& slot) noexcept {
  if (slot.memory != 0) driver_->free(slot.memory);
  if (slot.pinned != nullptr) driver_->free_pinned(slot.pinned);
  timeline_->drop(slot.copied);
  timeline_->drop(slot.begun);
  for (Use& use : slot.uses) timeline_->add_step(use.begun, use.finished, slot.batch);
  std::lock_guard lock(mutex_);
  if (slot.memory != 0) {
    --figures_.slots;
    figures_.slot_bytes -= slot.bytes;
  }
  figures_.pinned_bytes -= slot.pinned_bytes;
  slot = Slot();
}

void Stage::await_copy(Slot& slot, std::vector<std::shared_ptr<void>>& owners) {
  const uint64_t begun = now_ns();
  check(driver_->synchronize_event(slot.copied->event), "waiting for a copy");
  const uint64_t waited = now_ns() - begun;
  std::lock_guard lock(mutex_);
  ++figures_.host_waits;
  figures_.host_wait_ns += waited;
  end_copy(slot, owners);
}

// The copy has passed: its owners' memory is not read any more.
void Stage::end_copy(Slot& slot, std::vector<std::shared_ptr<void>>& owners) {
  slot.in_flight = false;
  timeline_->add_copy(std::exchange(slot.begun, nullptr), *slot.copied, slot.batch);
  for (auto& owner : slot.owners) owners.push_back(std::move(owner));
  slot.owners.clear();
}

// Makes the next copy into a slot wait for its consumers, on the device.
void Stage::order_behind_uses(Slot& slot) {
  std::vector<Use> uses;
  bool unknown = false;
  {
    std::lock_guard lock(mutex_);
    uses.swap(slot.uses);
    unknown = std::exchange(slot.unknown_use, false);
  }
  if (unknown) {
    check(driver_->synchronize_context(), "waiting for the device");
    std::lock_guard lock(mutex_);
    ++figures_.synchronised;
  }
  for (Use& use : uses) {
    Result result = timeline_->look(*use.finished);
    if (result == kNotReady) {
      result = driver_->wait_event(copies_, use.finished->event, 0);
      std::lock_guard lock(mutex_);
      ++figures_.device_waits;
    }
    check(result, "waiting for a consumer's stream");
    timeline_->add_step(use.begun, use.finished, slot.batch);
  }
}

// Writes arrays side by side into memory that the device can read.
void Stage::gather(Slot& slot, const std::vector<Tensor>& tensors, CopyPlan& plan) {
  if (slot.pinned == nullptr && slot.pageable.empty()) {
    void* pinned = nullptr;
    Result result = driver_->allocate_pinned(&pinned, slot.bytes, kPortable);
    if (result == kSuccess) {
      slot.pinned = static_cast<std::byte*>(pinned);
      slot.pinned_bytes = slot.bytes;
      std::lock_guard lock(mutex_);
      figures_.pinned_bytes += slot.bytes;
    } else if (result == kNoMemory) {  // a limit on pinned memory
      slot.pageable.resize(slot.bytes);
    } else {
      check(result, "allocating pinned memory");
    }
  }
  std::byte* to = slot.pinned != nullptr ? slot.pinned : slot.pageable.data();
  for (size_t i : plan.gather) {
    const Tensor source = tensors[i].contiguous();
    if (source.nbytes() > 0) std::memcpy(to + plan.offsets[i], source.data(), source.nbytes());
  }
  plan.pieces.push_back({to, 0, plan.gathered});
  std::lock_guard lock(mutex_);
  figures_.gathered_bytes += plan.gathered;
  if (slot.pinned == nullptr) ++figures_.pageable;
}

Stage::Mark* Stage::take_mark() {
  Mark* mark = nullptr;
  check(timeline_->take(mark), "making an event");
  return mark;
}

void Stage::reap(bool wait) {
  if (inherited_) return;
  Current current(*this);
  const DuringCaptures allowed(*driver_);
  check(current.result(), "making its context current");
  drop_copied(wait);
}

// Copies pass in the order of their batches, so the first one that has not passed is the last one
// that is asked about.
void Stage::drop_copied(bool wait) {
  std::vector<Slot*> flying;
  {
    std::lock_guard lock(mutex_);
    for (auto& slot : slots_) {
      if (slot->in_flight) flying.push_back(slot.get());
    }
  }
  std::ranges::sort(flying, {}, &Slot::batch);
  std::vector<std::shared_ptr<void>> owners;  // end without the lock: they may run other code
  for (Slot* slot : flying) {
    const Result result = timeline_->look(*slot->copied);
    if (result == kNotReady) {
      if (!wait) return;
      await_copy(*slot, owners);
      continue;
    }
    check(result, "waiting for a copy");
    std::lock_guard lock(mutex_);
    end_copy(*slot, owners);
  }
}

void Stage::take(Slot& slot, int64_t number) {
  if (inherited_) {
    throw Error(Code::kInvalidArgument, name_, "a batch of the parent's device, in a forked child");
  }
  if (number == 0 || number < -1) {
    throw Error(Code::kInvalidArgument, "dlpack",
                "stream is " + std::to_string(number) +
                    "; for CUDA give None, -1, 1 (legacy default), 2 (per-thread default) or a "
                    "stream's handle");
  }
  if (number == -1) {
    std::lock_guard lock(mutex_);
    slot.taken = slot.unknown_use = true;
    return;
  }
  const Stream stream = as_stream(number);
  Current current(*this);
  check(current.result(), "making its context current");
  int capturing = 0;
  const Result looked = driver_->capture_status(stream, &capturing);
  if (looked != kCaptureImplicit) check(looked, "looking at the consumer's stream");
  if (capturing != 0 || looked == kCaptureImplicit) {
    throw Error(Code::kInvalidArgument, "dlpack",
                "the stream captures a CUDA graph: take batches before the capture, and copy them "
                "into the graph's own input");
  }
  bool in_flight = false;
  {
    std::lock_guard lock(mutex_);
    if (is_used_by(slot, stream)) return;  // it waits for the copy already
    in_flight = slot.in_flight;
  }
  Mark* begun = timeline_->mark(stream);
  end_steps(stream, begun);
  Result result = kSuccess;
  if (in_flight) {
    const DuringCaptures allowed(*driver_);
    result = timeline_->look(*slot.copied);
  }
  const bool late = result == kNotReady;
  if (late) result = driver_->wait_event(stream, slot.copied->event, 0);
  check(result, "making the consumer's stream wait for the copy");
  std::lock_guard lock(mutex_);
  slot.taken = true;
  if (late) ++figures_.late, ++figures_.device_waits;
  slot.uses.push_back({stream, std::this_thread::get_id(), nullptr, begun});
}

bool Stage::is_used_by(const Slot& slot, Stream stream) const {
  const bool own = stream == per_thread_default_stream();
  for (const Use& use : slot.uses) {
    if (use.stream == stream && (!own || use.thread == std::this_thread::get_id())) return true;
  }
  return false;
}

// Steps of batches that this thread took on the stream, and still has, end with the next one.
void Stage::end_steps(Stream stream, Mark* end) {
  std::lock_guard lock(mutex_);
  for (auto& slot : slots_) {
    for (Use& use : slot->uses) {
      if (use.begun == nullptr || use.finished != nullptr || use.stream != stream ||
          use.thread != std::this_thread::get_id()) {
        continue;
      }
      timeline_->add_step(std::exchange(use.begun, nullptr), timeline_->share(end), slot->batch);
    }
  }
}

void Stage::release(Slot& slot) noexcept {
  if (inherited_) return;
  Current current(*this);
  std::unique_lock lock(mutex_);
  std::vector<Use> uses;
  for (Use& use : slot.uses) {
    int capturing = 0;
    Mark* finished = nullptr;
    // A thread's default stream has that name in its own thread only; an event recorded on a stream
    // that captures would be part of the graph.
    const bool foreign =
        use.stream == per_thread_default_stream() && use.thread != std::this_thread::get_id();
    if (!foreign && driver_->capture_status(use.stream, &capturing) == kSuccess && !capturing) {
      timeline_->take(finished);
      if (finished != nullptr && timeline_->record(*finished, use.stream) == kSuccess) {
        ++figures_.events;
        use.finished = finished;
        uses.push_back(use);
        continue;
      }
      timeline_->drop(finished);
    }
    slot.unknown_use = true;
    timeline_->drop(use.begun);  // the step's end is not known
  }
  slot.uses = std::move(uses);
  slot.taken = false;
  slot.state = Slot::State::kReleased;
  slot.released = ++releases_;
  if (!closed_) return;
  const auto own = std::find_if(slots_.begin(), slots_.end(),
                                [&](const auto& each) { return each.get() == &slot; });
  std::unique_ptr<Slot> last = std::move(*own);
  slots_.erase(own);
  lock.unlock();
  free_after_uses(*last);
}

// Frees what a slot has, once its copy and the work of its consumers have passed. A slot that was
// never taken has no consumer that waited for the copy.
void Stage::free_after_uses(Slot& slot) noexcept {
  const DuringCaptures allowed(*driver_);
  // They end last, and without the lock: they may run other code.
  const std::vector<std::shared_ptr<void>> owners = std::exchange(slot.owners, {});
  if (slot.in_flight) driver_->synchronize_event(slot.copied->event);
  for (Use& use : slot.uses) driver_->synchronize_event(use.finished->event);
  if (slot.unknown_use) driver_->synchronize_context();
  free_memory(slot);
}

void Stage::close() noexcept {
  if (inherited_) return;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
  }
  std::vector<std::unique_ptr<Slot>> unused;
  std::vector<std::shared_ptr<void>> owners;
  planner_->forget();
  Current current(*this);
  const DuringCaptures allowed(*driver_);
  driver_->synchronize_stream(copies_);  // a lost device copies nothing either
  {
    std::lock_guard lock(mutex_);
    for (auto& slot : slots_) {
      if (slot->in_flight) end_copy(*slot, owners);
      if (slot->state != Slot::State::kStaged) unused.push_back(std::move(slot));
    }
    std::erase(slots_, nullptr);
  }
  for (auto& slot : unused) free_after_uses(*slot);
}

Stage::Traces Stage::traces() {
  if (!inherited_) {
    try {
      reap();
    } catch (const Error&) {  // the device is lost: what is known stays
    }
    Current current(*this);
    const DuringCaptures allowed(*driver_);
    if (current.result() == kSuccess) {
      std::lock_guard lock(mutex_);
      for (auto& slot : slots_) {
        for (Use& use : slot->uses) {
          if (use.finished == nullptr || use.begun == nullptr) continue;
          timeline_->add_step(std::exchange(use.begun, nullptr), timeline_->share(use.finished),
                              slot->batch);
        }
      }
      timeline_->read();
    }
  }
  return {timeline_->copies(), timeline_->steps()};
}

StageFigures Stage::figures() const {
  std::lock_guard lock(mutex_);
  return figures_;
}

std::vector<Tensor> Stage::Batch::take(const std::shared_ptr<Batch>& batch, int64_t stream) {
  batch->stage_->take(batch->slot_, stream);
  std::vector<Tensor> arrays;
  arrays.reserve(batch->size());
  for (const Tensor& array : batch->arrays_) {
    arrays.push_back(Tensor::view(array.dtype(), array.shape(), array.data(), batch));
  }
  return arrays;
}

Tensor Stage::Batch::take(const std::shared_ptr<Batch>& batch, size_t place, int64_t stream) {
  const Tensor& array = batch->arrays_.at(place);
  batch->stage_->take(batch->slot_, stream);
  return Tensor::view(array.dtype(), array.shape(), array.data(), batch);
}

}  // namespace penstock::device
