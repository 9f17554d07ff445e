#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "penstock/pipeline/engine/loader_state.h"

namespace penstock {

// Deals the batches of one engine out to n consumers, each on its own thread: batch i of a pass
// goes to consumer i mod n. The hub has no thread. A consumer whose batch is not there pulls the
// engine, one consumer at a time, and puts each batch into its owner's queue; the others wait for
// their own batches, not for the puller. The engine delivers batches in order, so each consumer
// gets them in order.
//
// A pass is over for a consumer when it has taken its last batch. The next pass begins when this
// one is over for all open consumers. A consumer may be ahead of the others by as many batches as
// may be queued for them (Options); then it waits for the slowest one.
//
// States of a consumer:
//   - fresh: took no batch of its pass. A batch -> amid; the end -> done.
//   - amid: took some batches. The end, or a failed pass -> done; begin -> fresh, in the next pass,
//     and the rest of this pass is dropped and counted.
//   - done: saw the end of its pass. begin or next -> fresh, in the next pass.
//   - closed: its batches are dropped and counted.
//
// States of the pass:
//   - not begun: made, or restored. The first consumer that asks -> going.
//   - going: batches are pulled. The engine's end -> over; a failed batch -> failed.
//   - over: when all consumers are done, or want the next pass -> going, as the next pass.
//   - failed: batches pulled before are still delivered. Then the owner of the failed batch gets
//     its exception, all others Error kClosed. Next state as for over.
//
// Threads: a consumer is used by one thread at a time; everything else may be called from any.
class FeedsHub {
 public:
  struct Item {
    std::shared_ptr<void> value;  // ends on any thread, with the hub's lock held
    uint64_t bytes = 0;
  };
  struct Pulled {
    std::optional<Item> item;
    std::exception_ptr failure;  // of the batch that should have come. Neither: the pass is over
    std::string text;            // of the failure
  };
  struct Place {
    LoaderState state;
    bool front = false;  // of a pass
  };
  // `rounds`: epochs of the state that are one pass (Plan::rounds).
  static Place place_at(LoaderState state, uint64_t rounds);
  // The engine. One thread at a time, without the hub's lock; but for close, which ends a pull.
  class Source {
   public:
    virtual ~Source() = default;
    virtual void begin_pass() = 0;
    // What it throws is the caller's own (Error kClosed, an interrupt), and changes nothing.
    virtual Pulled pull() = 0;
    virtual Place place() = 0;
    virtual void restore(const LoaderState& state) = 0;
    virtual void close() = 0;
  };
  struct Options {
    uint32_t consumers = 1;
    uint64_t most = 10;                // batches that wait for consumers
    uint64_t most_bytes = UINT64_MAX;  // of those, but for one
    // A consumer waits so long for another one before Error kTimeout says for which; < 0: for ever.
    int64_t patience_ns = -1;
    // The same for one that this very thread was the last to use.
    int64_t own_patience_ns = 10'000'000'000;
  };
  struct Counts {
    uint64_t taken = 0;
    uint64_t dropped = 0;  // it was closed, or left a pass in the middle
  };

  // Error kInvalidArgument: no consumers, or more than 4096.
  FeedsHub(std::unique_ptr<Source> source, const Options& options);
  ~FeedsHub();

  // A consumer begins its next pass, if it took anything of the one that it is in.
  void begin(uint32_t consumer);
  enum class Next { kBatch, kEnd, kWait };
  // Its next batch. kEnd: the pass is over; asked again, it is in the next one. kWait: not yet,
  // after `timeout_ns` (< 0: none). Errors: the batch's own exception, what pull() throws, kClosed,
  // kTimeout (Options::patience_ns). After a failure the consumer's pass is over.
  Next next(uint32_t consumer, int64_t timeout_ns, Item& out);
  void close(uint32_t consumer);
  void close();

  // The place of all of them, as JSON: the lowest batch that nobody took, and which of those behind
  // it were taken.
  std::string state();
  // Also of another number of consumers. Those that are open go on there. Error kInvalidArgument.
  void restore(const std::string& state);
  std::vector<Counts> counts();
  uint32_t consumers() const { return options_.consumers; }

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Waiting {
    uint64_t index;
    Item item;
    Place place;  // in front of it
  };
  struct Consumer {
    std::deque<Waiting> queue;
    uint64_t pass = 0;
    bool fresh = true, done = false, closed = false;
    std::thread::id thread;      // that used it last
    uint64_t blocked_since = 0;  // ns; 0: it waits for no other one
    Counts counts;
  };

  void check_open(const Consumer& me) const;
  void enter_next(Consumer& me);
  // The pass is over for it.
  bool finished(const Consumer& c) const {
    return c.closed || c.pass > pass_ || (c.pass == pass_ && c.done);
  }
  std::optional<uint32_t> unfinished() const;
  uint32_t slowest() const;
  bool space() const;
  void drop_queue(Consumer& c, bool count);
  void begin_pass(Lock& lock);
  void pull(Lock& lock, uint32_t asking);
  [[noreturn]] void raise_failure(Lock& lock, uint32_t consumer);
  void look_at_patience(uint32_t consumer, uint32_t blocking);
  // Calls the source without the lock; nobody else does meanwhile.
  template <class F>
  void alone(Lock& lock, F f);

  const Options options_;
  std::unique_ptr<Source> source_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Consumer> consumers_;
  bool pulling_ = false;  // somebody is at the source
  bool closed_ = false;
  uint64_t pass_ = 0;
  bool begun_ = false;    // the source was told of the pass
  bool resumed_ = false;  // by restore()
  bool over_ = false;
  uint64_t index_ = 0;       // of the next batch that is pulled
  Place place_;              // in front of it
  std::set<uint64_t> skip_;  // taken before the state was
  uint64_t waiting_ = 0, waiting_bytes_ = 0, last_bytes_ = 0;
  struct Failed {
    uint32_t owner;
    uint64_t index;
    std::exception_ptr error;
    std::string text;
  };
  std::optional<Failed> failed_;
};

}  // namespace penstock
