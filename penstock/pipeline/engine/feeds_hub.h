#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "penstock/memory/byte_budget.h"
#include "penstock/pipeline/engine/loader_state.h"

namespace penstock {

// Distributes the batches of one engine to n consumers, each on its own thread: batch i of a pass
// goes to consumer i mod n. The hub has no thread. A consumer whose next batch is not pulled yet
// calls the engine, one consumer at a time, and puts each batch into its owner's queue. Other
// consumers wait for their own batches, not for the pulling consumer. The engine delivers batches
// in order, so each consumer gets its batches in order.
//
// A pass ends for a consumer when it has taken its last batch. The next pass begins when this one
// has ended for all open consumers. Options and the engine's budget bound the batches that are
// queued for slower consumers; at the bound a consumer waits for the slowest one. One queued batch
// of each consumer is its minimum in the budget.
//
// States of a consumer:
// - fresh: took no batch of its pass. A batch -> amid; the end -> done.
// - amid: took some batches. The end, or a failed pass -> done; begin -> fresh, in the next pass,
//   and the rest of this pass is dropped and counted.
// - done: saw the end of its pass. begin or next -> fresh, in the next pass.
// - closed: its batches are dropped and counted.
//
// States of the pass:
// - not begun: constructed or restored. The first consumer's call -> going.
// - going: batches are pulled. The engine's end -> over; a failed batch -> failed.
// - over: when all consumers are done or begin the next pass -> going, as the next pass.
// - failed: batches pulled before are still delivered. Then the owner of the failed batch gets its
//   exception, all others Error kClosed. Next state as for over.
//
// Threads: a consumer is used by one thread at a time; everything else may be called from any.
class FeedsHub {
 public:
  struct Item {
    std::shared_ptr<void> value;  // destroyed on any thread, with the hub's lock held
    uint64_t bytes = 0;
  };
  struct Pulled {
    std::optional<Item> item;
    std::exception_ptr failure;  // of the next batch. If neither is set, the pass ended
    std::string text;            // of the failure
  };
  struct Place {
    LoaderState state;
    bool front = false;  // at the start of a pass
  };
  // `rounds`: epochs of the state that form one pass (Plan::rounds).
  static Place place_at(LoaderState state, uint64_t rounds);
  // The engine. Called by one thread at a time, without the hub's lock. close() may be called
  // during a pull and ends it.
  class Source {
   public:
    virtual ~Source() = default;
    virtual void begin_pass() = 0;
    // An exception is one for the caller (Error kClosed, an interrupt); nothing has changed then.
    virtual Pulled pull() = 0;
    virtual Place place() = 0;
    virtual void restore(const LoaderState& state) = 0;
    virtual void close() = 0;
    // The budget of the engine.
    virtual ByteBudget& budget() = 0;
  };
  struct Options {
    uint32_t consumers = 1;
    uint64_t most = 10;  // batches queued for consumers
    // How long a consumer waits for another one before Error kTimeout, which names it; < 0:
    // forever.
    int64_t patience_ns = -1;
    // The same if the other consumer was last used by the calling thread.
    int64_t own_patience_ns = 10'000'000'000;
  };
  struct Counts {
    uint64_t taken = 0;
    uint64_t dropped = 0;  // because the consumer was closed, or left a pass before its end
  };

  // Error kInvalidArgument: no consumers, or more than 4096.
  FeedsHub(std::unique_ptr<Source> source, const Options& options);
  ~FeedsHub();

  // The consumer begins its next pass, if it took a batch of its current one.
  void begin(uint32_t consumer);
  enum class Next { kBatch, kEnd, kWait };
  // The consumer's next batch. kEnd: its pass ended; the next call is in the next pass. kWait: not
  // yet, after `timeout_ns` (< 0: no timeout). Errors: the batch's exception, those of pull(),
  // kClosed, kTimeout (Options::patience_ns). After a failure the consumer's pass has ended.
  Next next(uint32_t consumer, int64_t timeout_ns, Item& out);
  void close(uint32_t consumer);
  void close();

  // The place of all consumers as JSON: the lowest batch that was not taken, and which later
  // batches were taken.
  std::string state();
  // Accepts states of another number of consumers. Open consumers continue from there. Error
  // kInvalidArgument.
  void restore(const std::string& state);
  std::vector<Counts> counts();
  uint32_t consumers() const { return options_.consumers; }

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Waiting {
    uint64_t index;
    Item item;
    Place place;  // before the item
  };
  struct Consumer {
    Consumer(ByteBudget& budget, std::function<void()> on_grant)
        : bytes(budget, std::move(on_grant)) {}
    std::deque<Waiting> queue;
    ByteBudget::Holder bytes;  // of the queue
    uint64_t pass = 0;
    bool fresh = true, done = false, closed = false;
    std::thread::id thread;      // the last thread that used the consumer
    uint64_t blocked_since = 0;  // ns; 0: not waiting for another consumer
    Counts counts;
  };

  void check_open(const Consumer& me) const;
  void enter_next(Consumer& me);
  // The pass has ended for this consumer.
  bool finished(const Consumer& c) const {
    return c.closed || c.pass > pass_ || (c.pass == pass_ && c.done);
  }
  std::optional<uint32_t> unfinished() const;
  uint32_t slowest() const;
  bool take_space(Consumer& owner);
  void drop_queue(Consumer& c, bool count);
  void begin_pass(Lock& lock);
  void pull(Lock& lock, uint32_t asking, uint64_t taken);
  void count(Consumer& owner, uint64_t taken, uint64_t bytes);
  [[noreturn]] void raise_failure(Lock& lock, uint32_t consumer);
  void check_timeout(uint32_t consumer, uint32_t blocking);
  // Calls f, which uses the source, without the lock. No other thread uses the source meanwhile.
  template <class F>
  void alone(Lock& lock, F f);

  const Options options_;
  std::unique_ptr<Source> source_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Consumer> consumers_;
  bool pulling_ = false;  // a thread uses the source
  bool closed_ = false;
  uint64_t pass_ = 0;
  bool begun_ = false;    // Source::begin_pass() was called
  bool resumed_ = false;  // by restore()
  bool over_ = false;
  uint64_t index_ = 0;       // of the next batch to pull
  Place place_;              // before that batch
  std::set<uint64_t> skip_;  // batches taken before the restored state was saved
  uint64_t waiting_ = 0, last_bytes_ = 0, largest_ = 0;
  struct Failed {
    uint32_t owner;
    uint64_t index;
    std::exception_ptr error;
    std::string text;
  };
  std::optional<Failed> failed_;
};

}  // namespace penstock
