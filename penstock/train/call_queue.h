#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "penstock/base/fork_aware.h"
#include "penstock/observe/latency_histogram.h"

namespace penstock::train {

struct CallQueueOptions {
  uint64_t max_batch = 64;    // calls of one batch
  int64_t max_wait_ns = 0;    // that a leader waits for more calls, from the arrival of the first
  uint64_t max_queue = 1024;  // calls that may be taken; later ones wait for space, in their order
  // For callers that share a lock which they need to go on (the GIL): a batch's callers are woken
  // one after the other, each by the one before it, and does not take the lock before that one has
  // released it. Woken all at once, each would sleep a second time, for the lock. The next leader
  // waits until all of them go on, because they may call again.
  bool in_turn = false;
  // Called several times a second in the thread of a call that waits. May throw, which withdraws
  // the call. Must not call the batcher.
  std::function<void()> while_waiting = nullptr;
};

struct CallCounts {
  uint64_t calls = 0;       // calls that ended with a result or an error of their batch
  uint64_t batches = 0;     // that were run
  uint64_t failed = 0;      // calls that ended with an error of their batch
  uint64_t withdrawn = 0;   // calls that left before they had a result
  uint64_t queued = 0;      // calls that wait now and may be taken
  uint64_t blocked = 0;     // calls that wait now for space in the queue
  LatencyHistogram waited;  // from a call's arrival to the begin of its batch
  LatencyHistogram total;   // from a call's arrival to its result
};

// Makes batches of calls that are there at the same time. One of the callers leads: it takes the
// oldest calls, its own among them, runs them together, hands out the results, and then hands the
// lead to the oldest call that still waits. So a lone call is run by its own thread, at once.
//
// A call that a thread waits for is entered (`enter`, `wait`). Any other call is submitted: a
// helper thread (`wait_to_lead`) leads in its place, and the leader hands over the result.
//
//              enter(), submit()
//   new ──────────────────────────> waiting ──withdraw(), close()──> withdrawn, done (kClosed)
//                                    │    ^
//          no call leads, and it is  │    │ put_back(): the leader was interrupted
//           the oldest: appointed    v    │
//                                  leads ─┤
//                                    │    │
//        a leader takes the oldest   v    │
//        calls: take()            running ┴──finish()──> done
//
// 1. Calls wait in the order of their arrival, and are taken in this order.
// 2. While a call waits, exactly one leader is appointed: the oldest call's thread, or the helper
//    if the oldest call was submitted. It leads one batch.
// 3. Only the leader takes calls. A call can be withdrawn as long as it was not taken; if its
//    caller leaves later, its result is dropped.
// 4. One batch runs at a time. With `in_turn` it begins after the last batch's callers have gone
// on.
//
// A caller with a lock of its own (the GIL) holds it in all functions but the waits: wait(),
// gather(), wait_to_lead(). No function calls user code while it holds the queue's lock, except
// Call::joins().
//
// In a forked child the queue is empty and works: calls of other threads remain the parent's. The
// batch that the forking thread runs has only its own call there.
//
// Threads: any.
class CallQueue final : private ForkAware {
 public:
  // Input and result belong to the derived class: the caller writes the input before the call is
  // entered, the leader the result before finish().
  class Call {
   public:
    virtual ~Call() = default;
    Call() = default;
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    // Whether it can be in one batch with `oldest`, the batch's first call.
    virtual bool joins(const Call&) const { return true; }
    // Set by the leader, or by close(). Read after the call has ended.
    std::exception_ptr error = nullptr;
    // Counts as failed: for leaders that keep errors in the derived class.
    bool failed = false;
    // Its caller left while it ran. For the leader, after finish().
    bool abandoned = false;
    bool submitted() const { return submitted_; }

   private:
    friend class CallQueue;
    enum State : uint32_t { kNew, kWaiting, kLeads, kRunning, kDone, kWithdrawn };

    std::atomic<uint32_t> state_{kNew};
    bool submitted_ = false;
    bool awake_ = false;  // its thread is in while_waiting
    uint64_t arrived_ns_ = 0, taken_ns_ = 0;
    bool returning_ = false;               // its batch has ended, and returned() was not called
    std::shared_ptr<Call> next_;           // to wake then
    std::atomic<uint32_t> seen_waits_{0};  // waits_ when its thread was woken
    std::list<std::shared_ptr<Call>>::iterator at_;
  };
  using CallRef = std::shared_ptr<Call>;
  using Batch = std::vector<CallRef>;

  // `operation`: of errors. Error kInvalidArgument: max_batch is 0, or max_queue is smaller.
  CallQueue(std::string operation, CallQueueOptions options);
  ~CallQueue();  // REQUIRED: no thread uses the queue

  const CallQueueOptions& options() const { return options_; }

  // Adds a call that this thread waits for. True: its thread leads now. Errors: kClosed,
  // kInvalidArgument (this thread runs a batch, or is in while_waiting: the call would wait for
  // itself).
  bool enter(const CallRef& call);
  // Adds a call that a helper leads. Errors as enter().
  void submit(const CallRef& call);
  // Sleeps until the call has ended (false), or leads (true). `end_ns`: time of now_ns();
  // UINT64_MAX: no end. Error kTimeout: the call was withdrawn. An exception of while_waiting
  // withdraws it, too.
  bool wait(Call& call, uint64_t end_ns);
  // With `in_turn`: call it when a caller goes on after wait(), also if that threw, with the
  // callers' lock held.
  void returned(Call& call);
  static bool ended(const Call& call) { return call.state_.load() >= Call::kDone; }
  // Withdraws a call, or drops its result if it runs. False: it has ended.
  bool withdraw(Call& call);

  // Sleeps until a helper has to lead; false: closed.
  bool wait_to_lead();

  // ---- for the leader. `own`: its call; null: a helper leads.

  // Sleeps until the batch is full, or max_wait has passed. Errors as wait().
  void gather(Call* own);
  // Takes the oldest calls. Empty: it does not lead any more (closed; all were withdrawn).
  Batch take(const Call* own);
  // Ends the calls and hands over the lead. REQUIRED: results were written.
  void finish(const Batch& batch);
  // The batch was interrupted: `own` ends, the other calls wait again, as the oldest.
  void put_back(const Batch& batch, const Call* own);

  CallCounts counts() const;
  uint64_t waiting() const;  // counts().queued + counts().blocked, much faster
  bool closed() const;
  // Calls that wait end with kClosed, and are returned; a batch that runs is completed. Idempotent.
  Batch close();

 private:
  enum class Leader : uint8_t { kNone, kCaller, kHelper };

  void before_fork() noexcept override { mutex_.lock(); }
  void after_fork_in_parent() noexcept override { mutex_.unlock(); }
  void after_fork_in_child() noexcept override;

  // With mutex_:
  void add(const CallRef& call, bool submitted);
  void appoint();  // REQUIRED: no call leads
  bool appointed(const Call& call) const;
  void lead();  // lets the appointed call lead, unless callers of the last batch are to go on first
  void end(Call& call, uint64_t now);
  void check_thread() const;
  // Without mutex_, before a thread goes on and takes the callers' lock: a short while, until the
  // thread that woke it waits again and has released the lock.
  void await_lock(const Call& call) const;
  void attend(Call& call);  // without mutex_: calls while_waiting
  std::exception_ptr closed_error() const;

  const std::string operation_;
  const CallQueueOptions options_;

  mutable std::mutex mutex_;  // held for a short time only; also while the process forks
  std::list<CallRef> waiting_;
  std::list<CallRef> parents_;  // in a forked child: calls of the parent's threads
  Leader leader_ = Leader::kNone;
  bool gathering_ = false;
  bool running_ = false;
  std::thread::id runner_;                  // if running_
  const Call* own_ = nullptr;               // if running_: the leader's call
  uint64_t returning_ = 0;                  // calls with the flag of that name
  std::vector<std::thread::id> attending_;  // threads in while_waiting
  bool closed_ = false;
  CallCounts counts_;

  std::atomic<uint32_t> waits_{0};     // incremented when a thread begins to wait, without its lock
  std::atomic<uint32_t> gathered_{0};  // incremented when the batch of gather() is full
  std::atomic<uint32_t> helper_{0};    // incremented when a helper is appointed
};

}  // namespace penstock::train
