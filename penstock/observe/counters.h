#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <type_traits>
#include <vector>

namespace penstock {

// A number that one part counts up and any other may read at any time, from other processes too.
// Eight bytes; all zero bytes are a valid zero, so a counter may lie in freshly mapped shared
// memory. All accesses are relaxed: a counter never orders other memory accesses.
class Counter {
 public:
  // Any number of writers.
  void add(uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  // Only where a single thread writes this counter: a plain load and store, no locked instruction.
  void add_single_writer(uint64_t n = 1) {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  void set(uint64_t n) { value_.store(n, std::memory_order_relaxed); }
  uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// Pieces of work shorter than kQuickNs are timed kUntimed at a time: reading the clock for each
// would be a noticeable part of the work.
inline constexpr uint64_t kQuickNs = 20'000;
inline constexpr uint32_t kUntimed = 32;

// Why bytes had to be copied on their way to the consumer.
enum class CopyReason : uint32_t {
  kNotOwned,    // a view of memory that lives on: a persistent array, a reused buffer
  kReferenced,  // still referenced in the worker
  kForeign,     // not from the arena: allocated by another library
  kSparse,      // a view that covers less than half of its block
  kSmall,       // small enough to travel inside the message
  kPickled,     // not an array
  kRow,         // a sample's row written into its batch: the one necessary write
  kArenaFull,   // the arena was full: slow path
  kCount,
};
inline constexpr size_t kCopyReasons = static_cast<size_t>(CopyReason::kCount);

// "not owned", "referenced", ... : the key in stats() and in the report.
std::string_view name_of(CopyReason reason);

// A field's name and member pointer: the list that copying, stats() and the report iterate over.
template <class Fields, class Value>
struct CounterField {
  std::string_view name;
  Value Fields::*member;
};

// Counters of one worker. Only that worker writes them (so it may use add_single_writer), except
// `deaths`, which its supervisor writes. A replacement worker continues in the same counters.
// Times are nanoseconds.
template <class Value>
struct alignas(64) WorkerFields {
  Value tickets;         // tickets fulfilled (also those that ended with an error)
  Value samples;         // samples in them, if the worker knows the number
  Value bytes;           // payload bytes handed over
  Value busy_ns;         // making batches and handing them over
  Value wait_ticket_ns;  // nothing to do: the queue is full or the source is not ready
  Value wait_slot_ns;    // a ticket in hand, but no memory to put its result into
  Value copies_avoided;  // arrays passed by address
  Value bytes_avoided;
  Value errors;       // exceptions out of user code
  Value deaths;       // times that this worker had to be replaced
  Value page_faults;  // minor and major, of the worker's own process or thread
  Value copies[kCopyReasons];
  Value bytes_copied[kCopyReasons];

  // Every field but the two arrays.
  static constexpr auto fields() {
    using Named = CounterField<WorkerFields, Value>;
    return std::array{
        Named{"tickets", &WorkerFields::tickets},
        Named{"samples", &WorkerFields::samples},
        Named{"bytes", &WorkerFields::bytes},
        Named{"busy_ns", &WorkerFields::busy_ns},
        Named{"wait_ticket_ns", &WorkerFields::wait_ticket_ns},
        Named{"wait_slot_ns", &WorkerFields::wait_slot_ns},
        Named{"copies_avoided", &WorkerFields::copies_avoided},
        Named{"bytes_avoided", &WorkerFields::bytes_avoided},
        Named{"errors", &WorkerFields::errors},
        Named{"deaths", &WorkerFields::deaths},
        Named{"page_faults", &WorkerFields::page_faults},
    };
  }
};
using WorkerCounters = WorkerFields<Counter>;  // lives in shared memory
using WorkerFigures = WorkerFields<uint64_t>;  // a reading of it

// Counters of the consumer. Written by the consumer's thread, except restarts, retried, timeouts
// and errors, which other threads may write too (use add). Times are nanoseconds of the monotonic
// clock.
template <class Value>
struct alignas(64) ConsumerFields {
  Value delivered;  // batches given to the user
  Value samples;    // samples in them, where known
  Value bytes;
  Value wait_ns;        // the user asked and had to wait
  Value first_wait_ns;  // the part for the first batch, during which workers start
  Value busy_ns;        // between two requests: the training step
  Value first_ns;       // when the first batch was asked for (a point in time; 0: not yet)
  Value last_ns;        // when the last batch was given out (a point in time)
  Value epochs;         // epochs finished
  Value skipped;        // samples or items lost under on_error="skip"
  Value replaced;       // samples filled with another under on_error="replace"
  Value restarts;       // workers replaced
  Value retried;        // tickets tried again after an exception
  Value reissued;       // tickets given to another worker after a death
  Value timeouts;       // tickets that took longer than allowed
  Value errors;         // exceptions that reached the user, or that only `__getitems__` raised

  static constexpr auto fields() {
    using Named = CounterField<ConsumerFields, Value>;
    return std::array{
        Named{"delivered", &ConsumerFields::delivered},
        Named{"samples", &ConsumerFields::samples},
        Named{"bytes", &ConsumerFields::bytes},
        Named{"wait_ns", &ConsumerFields::wait_ns},
        Named{"first_wait_ns", &ConsumerFields::first_wait_ns},
        Named{"busy_ns", &ConsumerFields::busy_ns},
        Named{"first_ns", &ConsumerFields::first_ns},
        Named{"last_ns", &ConsumerFields::last_ns},
        Named{"epochs", &ConsumerFields::epochs},
        Named{"skipped", &ConsumerFields::skipped},
        Named{"replaced", &ConsumerFields::replaced},
        Named{"restarts", &ConsumerFields::restarts},
        Named{"retried", &ConsumerFields::retried},
        Named{"reissued", &ConsumerFields::reissued},
        Named{"timeouts", &ConsumerFields::timeouts},
        Named{"errors", &ConsumerFields::errors},
    };
  }
};
using ConsumerCounters = ConsumerFields<Counter>;
using ConsumerFigures = ConsumerFields<uint64_t>;

// Counters of one thread for each stage of a chain: the stage's own time, without its inputs', and
// the rows it produced. Written by that thread alone; times are nanoseconds.
inline constexpr uint32_t kStages = 32;  // the last one sums up all further stages
template <class Value>
struct StageFields {
  Value ns;
  Value rows;
};
using StageCounters = std::array<StageFields<Counter>, kStages>;  // lives in shared memory
using StageFigures = std::array<StageFields<uint64_t>, kStages>;

// A copy of live counters. Each figure is exact, but they are not all read at one instant.
// Any thread.
WorkerFigures figures_of(const WorkerCounters& counters);
ConsumerFigures figures_of(const ConsumerCounters& counters);
StageFigures figures_of(const StageCounters& counters);

// Adds each figure.
WorkerFigures& operator+=(WorkerFigures& sum, const WorkerFigures& more);
StageFigures& operator+=(StageFigures& sum, const StageFigures& more);

// Called by a worker's own thread for each array.
inline void count_copy(WorkerCounters& counters, CopyReason reason, uint64_t bytes) {
  counters.copies[static_cast<size_t>(reason)].add_single_writer();
  counters.bytes_copied[static_cast<size_t>(reason)].add_single_writer(bytes);
}
inline void count_avoided_copy(WorkerCounters& counters, uint64_t bytes) {
  counters.copies_avoided.add_single_writer();
  counters.bytes_avoided.add_single_writer(bytes);
}

struct DepthSample {
  uint64_t at_ns = 0;
  uint32_t depth = 0;  // batches that were ready
};

// How many batches were ready, over the whole run, in bounded memory. When the history is full,
// every second sample is dropped, and from then on samples are taken half as often.
// add: one thread. read: any thread.
class DepthHistory {
 public:
  static constexpr size_t kCapacity = 1024;

  void add(uint64_t now_ns, uint32_t depth) {
    if (now_ns >= next_ns_) {
      keep(now_ns, depth);
    }
  }
  std::vector<DepthSample> read() const;

 private:
  void keep(uint64_t now_ns, uint32_t depth);

  mutable std::mutex mutex_;  // of samples_; next_ns_ and interval_ns_ are the writer's own
  std::vector<DepthSample> samples_;
  uint64_t next_ns_ = 0;
  uint64_t interval_ns_ = 100'000;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(Counter) == 8);
static_assert(std::is_standard_layout_v<WorkerCounters> &&
              std::is_trivially_destructible_v<WorkerCounters>);
static_assert(std::is_standard_layout_v<ConsumerCounters> &&
              std::is_trivially_destructible_v<ConsumerCounters>);

}  // namespace penstock
