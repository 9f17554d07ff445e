#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

namespace penstock {

// One number of bytes for all holders of a loader: the batches of a scheduler, the stream chunks of
// a stream reader, the elements of each parallel map, the waiting batches of each consumer of
// feeds. Nothing is divided beforehand. Each holder has a minimum, which is reserved for it and
// which it always gets; the rest is first come, first served. No thread waits here: take() returns
// at once, and a holder that waits is called when its bytes are there.
//
// States of a holder:
// - content: take() granted everything that it asked for. take() finds no space -> waiting.
// - waiting: in the queue, with a number of bytes. When another holder gives bytes back, that
//   thread grants the request of each holder in order of arrival, as long as there is space ->
//   granted. A further take(): the number changes, the place in the queue stays. take() finds space
//   and no earlier holder in the queue, or withdraw() -> content.
// - granted: the bytes are set aside for the holder. take() uses them -> content; withdraw() gives
//   them back -> content.
//
// Invariants:
// 1. used() is the sum of max(bytes, minimum) over all holders; bytes include those set aside.
// 2. take() and grants beyond a minimum keep used() within total(). Only minimums and add() may
//    exceed it, and nothing is granted until used() has fallen again.
// 3. No holder overtakes an earlier one in the queue, except one whose request could not be granted
//    even if all others had only their minimum.
//
// Threads: any. No lock is held while a holder is called (Holder::Holder).
class ByteBudget {
 public:
  // `total`: UINT64_MAX: no bound.
  explicit ByteBudget(uint64_t total) : total_(total) {}
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  uint64_t total() const { return total_; }
  bool bounded() const { return total_ != UINT64_MAX; }
  uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  // A holder waits, so bytes that are given back are needed.
  bool contended() const { return waiting_count_.load(std::memory_order_relaxed) != 0; }

  class Holder {
   public:
    // `on_grant`: called after a request was granted because another holder gave back, on that
    // one's thread. It may take locks that are held during take() and add(), but none that are held
    // during give_back(), withdraw() or set_minimum() of any holder. `budget` must outlive this.
    Holder(ByteBudget& budget, std::function<void()> on_grant)
        : budget_(budget), on_grant_(std::move(on_grant)) {
      budget_.holders_.fetch_add(1, std::memory_order_relaxed);
    }
    // Gives everything back. Waits until on_grant has returned.
    ~Holder();
    Holder(const Holder&) = delete;
    Holder& operator=(const Holder&) = delete;

    // Asks for `bytes` more. False: there is no space, and the holder waits for them.
    bool take(uint64_t bytes);
    // Counts bytes that exist already, whether there is space or not.
    void add(uint64_t bytes);
    // REQUIRED: the holder has so many.
    void give_back(uint64_t bytes);
    // Ends the holder's request, and gives back what was set aside for it.
    void withdraw();
    // The bytes that the holder may always have.
    void set_minimum(uint64_t bytes);
    // The bytes that the holder could have now: its own, its minimum, and those that are free.
    uint64_t space() const;
    // There is no other holder that needs to know how many bytes this one has.
    bool alone() const { return budget_.holders_.load(std::memory_order_relaxed) == 1; }
    ByteBudget& budget() const { return budget_; }

   private:
    friend ByteBudget;
    void count();

    ByteBudget& budget_;
    const std::function<void()> on_grant_;
    // Guarded by the budget's mutex.
    uint64_t bytes_ = 0, set_aside_ = 0, minimum_ = 0;
    uint64_t request_ = 0;  // bytes beside those set aside; 0: not in the queue
    uint32_t calls_ = 0;    // of on_grant that have not returned
    // max(bytes, minimum), for any thread.
    std::atomic<uint64_t> counted_ = 0;
  };

 private:
  bool fits(const Holder& holder, uint64_t more) const;
  bool possible(const Holder& holder, uint64_t more) const;
  bool is_next(const Holder& holder) const;
  void leave_queue(Holder& holder);
  void grant(std::unique_lock<std::mutex>& lock, const Holder* caller);

  const uint64_t total_;
  std::atomic<uint64_t> used_ = 0;  // written with the lock
  std::atomic<uint64_t> waiting_count_ = 0;
  std::atomic<uint32_t> holders_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable returned_;  // from on_grant
  uint64_t minimums_ = 0;             // of all holders
  std::deque<Holder*> waiting_;       // in order of arrival
};

}  // namespace penstock
