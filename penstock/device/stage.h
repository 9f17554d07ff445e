#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "penstock/base/fork_aware.h"
#include "penstock/device/copy_plan.h"
#include "penstock/device/driver.h"
#include "penstock/device/timeline.h"
#include "penstock/memory/dlpack.h"
#include "penstock/memory/tensor.h"
#include "penstock/observe/trace.h"

namespace penstock::device {

// What a Stage did. Times are nanoseconds.
struct StageFigures {
  uint64_t batches = 0;
  uint64_t bytes = 0;           // copied to the device
  uint64_t copies = 0;          // over the link
  uint64_t gathered_bytes = 0;  // first copied into pinned memory by the CPU
  uint64_t device_waits = 0;    // of one stream for another; the host does not wait
  uint64_t host_waits = 0;      // times that the host waited for a copy
  uint64_t host_wait_ns = 0;
  uint64_t late = 0;          // batches taken before their copy had finished
  uint64_t events = 0;        // recorded
  uint64_t synchronised = 0;  // times that all of the device had to be waited for
  uint64_t slots = 0;         // now
  uint64_t slot_bytes = 0;    // of device memory, now
  uint64_t pinned_bytes = 0;  // of host memory, now
  uint64_t pageable = 0;      // batches copied from memory that could not be pinned
};

// Copies batches into a ring of buffers on a CUDA device and hands them out by DLPack. The states
// of a buffer, and who moves them, are in README.md.
//
// Threads: put(), reap() and close() one at a time; figures(), and everything of a StagedBatch,
// any. In a forked child, all but the ends of objects is an Error kInvalidArgument.
class Stage final : public std::enable_shared_from_this<Stage>, private ForkAware {
  struct Token {};  // makes the constructor private to open()
  struct Slot;

 public:
  class Batch;

  // Shares the device's primary context with frameworks in this process. Errors of Driver::load();
  // kNotFound: no such device.
  static std::shared_ptr<Stage> open(int device, const std::string& library = Driver::kLibrary);

  Stage(Token, std::shared_ptr<const Driver> driver, int ordinal);
  ~Stage();
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  // Begins the copy of a batch and returns. Keeps the owners of `tensors` until their memory was
  // read. Waits for the host's sake only if the ring is full of copies that have not finished.
  // Errors: kOutOfMemory (device memory; the text says how much is missing; nothing was begun),
  // kClosed, kSystem (the device or its driver is lost: the stage stays unusable).
  std::shared_ptr<Batch> put(std::vector<Tensor> tensors);

  // Drops the owners of memory that has been copied. wait: waits for all copies.
  void reap(bool wait = false);

  // Waits for copies in flight and frees all memory that no batch uses. Later calls of put() are an
  // Error kClosed; batches stay valid. Never throws; may be called again.
  void close() noexcept;

  int device() const { return ordinal_; }
  StageFigures figures() const;
  // When copies ran; and for the streams that take batches, when they waited for a copy and when
  // they ran a step: from one batch taken to the next one, or to the batch's release. Events have a
  // batch's number as their step. Times of the device's own clock (timeline.h). Not with put().
  struct Traces {
    std::vector<TraceEvent> copies, steps;
  };
  Traces traces();

 private:
  class Current;
  struct Use;
  using Mark = Timeline::Mark;

  void after_fork_in_child() noexcept override { inherited_.store(true); }
  void check_usable() const;
  void check(Result result, const char* what);  // marks the stage as lost
  Slot& free_slot(size_t bytes);
  Slot* oldest_released(size_t bytes);
  Slot& add_slot(size_t bytes);
  std::vector<std::unique_ptr<Slot>> take_idle(size_t most);
  void retire(std::vector<std::unique_ptr<Slot>> slots);
  void trim();
  void free_after_uses(Slot& slot) noexcept;
  void free_memory(Slot& slot) noexcept;
  void drop_copied(bool wait);
  void await_copy(Slot& slot, std::vector<std::shared_ptr<void>>& owners);
  void order_behind_uses(Slot& slot);
  void gather(Slot& slot, const std::vector<Tensor>& tensors, CopyPlan& plan);
  Mark* take_mark();
  void take(Slot& slot, int64_t stream);
  bool is_used_by(const Slot& slot, Stream stream) const;
  void end_steps(Stream stream, Mark* end);
  void end_copy(Slot& slot, std::vector<std::shared_ptr<void>>& owners);
  void release(Slot& slot) noexcept;

  const std::shared_ptr<const Driver> driver_;
  const int ordinal_;
  const std::string name_;  // "cuda:0"
  int handle_ = 0;
  Context* context_ = nullptr;
  Stream copies_ = nullptr;
  std::atomic<bool> inherited_{false};

  std::optional<CopyPlanner> planner_;  // only the thread of put() uses it

  std::unique_ptr<Timeline> timeline_;  // has all events that are not in use

  mutable std::mutex mutex_;  // of everything below
  std::vector<std::unique_ptr<Slot>> slots_;
  uint64_t releases_ = 0;   // gives released slots an order
  size_t most_staged_ = 0;  // slots in use at a time, since the last trim()
  uint64_t next_trim_ = 0;  // the batch of the next one
  bool closed_ = false;
  std::string lost_;  // why the device can't be used any more
  StageFigures figures_;
};

// A batch on the device, or on its way to it. When the last reference to it, and to the arrays that
// were taken from it, ends, its buffer may be used again.
class Stage::Batch {
 public:
  Batch(std::shared_ptr<Stage> stage, Slot& slot, std::vector<Tensor> arrays)
      : stage_(std::move(stage)), slot_(slot), arrays_(std::move(arrays)) {}
  ~Batch() { stage_->release(slot_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  size_t size() const { return arrays_.size(); }
  // Shapes and types; the data is device memory.
  const Tensor& operator[](size_t place) const { return arrays_[place]; }
  dlpack::Device device() const { return {dlpack::kCuda, stage_->ordinal_}; }

  // An array for the consumer's stream, which keeps `batch` alive; for to_dlpack() with device().
  // The stream's number is DLPack's: -1: no ordering is asked for; 1: the legacy default stream; 2:
  // the calling thread's default stream; above 2: a stream's handle. Error kInvalidArgument:
  // another number (0 is ambiguous), or the stream captures a graph.
  static Tensor take(const std::shared_ptr<Batch>& batch, size_t place, int64_t stream);
  // All arrays, with the calls of the driver for one.
  static std::vector<Tensor> take(const std::shared_ptr<Batch>& batch, int64_t stream);

 private:
  const std::shared_ptr<Stage> stage_;
  Slot& slot_;
  const std::vector<Tensor> arrays_;
};

}  // namespace penstock::device
