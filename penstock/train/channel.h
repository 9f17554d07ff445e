#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "penstock/train/channel_memory.h"
#include "penstock/train/gathering.h"
#include "penstock/train/named_server.h"

namespace penstock::train {

struct ChannelOptions {
  uint64_t capacity = uint64_t{16} << 20;  // bytes of each producer's ring
  WhenFull when_full = WhenFull::kBlock;
  // Called from time to time in the thread of a get() that waits. May throw, which ends the call.
  std::function<void()> while_waiting = nullptr;
};

// What became of a producer's items. put() of each is got + dropped + queued.
struct ProducerCounts {
  pid_t pid = 0;         // 0: several producers together
  bool alive = false;    // it is connected
  uint64_t put = 0;      // that it put into its ring
  uint64_t got = 0;      // that were taken
  uint64_t dropped = 0;  // that made room for newer ones (kDropOldest), or are no items
  uint64_t refused = 0;  // that were not let in (kDropNewest): not among those put
  uint64_t queued = 0;
};

// Where a learner takes what producers (producer.h) put: processes of this user that nobody started
// together, which know a name. Each has a ring of its own in shared memory, so producers never wait
// for each other, and one that is killed at any instruction loses at most the item that it was
// writing. The rings are looked at in turn, so that none starves. docs/training.md, section 6.
//
// The name is this object's until it goes. A forked child has no channel: it is its parent's.
//
// Threads: any.
class Channel final : private NamedServer::Rows {
 public:
  // Errors: kInvalidArgument (the name, or another process has it; capacity), kOutOfMemory,
  // kSystem.
  explicit Channel(std::string name, ChannelOptions options = {});
  ~Channel();

  const std::string& name() const { return name_; }
  uint64_t capacity() const { return memory_->capacity(); }
  WhenFull when_full() const { return memory_->when_full(); }

  // Waits until there is an item, and takes up to `most`, those of a producer in its order. Empty
  // after the timeout (< 0: for ever). Errors: kInvalidArgument (most is 0; a forked child),
  // kClosed, kDataLoss (a producer put what is no item: it was sent away, and is named; nothing
  // else is lost), kOutOfMemory (nothing was taken).
  Items get(uint64_t most, int64_t timeout_ns = -1);

  // Of each producer, those that are gone too: the last kProducers of them, and one for all
  // before those. Any time, also after close(). Error kInvalidArgument: a forked child.
  std::vector<ProducerCounts> stats() const;
  size_t producers() const { return server_.peers(); }  // that are connected

  // Ends all waits, here and of producers; what is in the rings is lost. Idempotent. Nothing in a
  // forked child.
  void close();

 private:
  // A producer's ring, until it is gone and all of it was taken.
  struct Inlet {
    Inlet(uint32_t its_row, pid_t its_pid, RingMapping mapped, Ring its_ring)
        : row(its_row), pid(its_pid), mapping(std::move(mapped)), ring(its_ring) {}

    uint32_t row;
    pid_t pid;
    RingMapping mapping;
    Ring ring;
    bool alive = true;      // it is connected
    bool banished = false;  // it put what is no item: nothing more is taken of it
    uint64_t got = 0;
    uint64_t passed = 0;  // of head's count: got or dropped
    SpecRef spec;         // of its last item
  };

  std::optional<int> came(uint32_t row, pid_t pid) override;
  void left(uint32_t row) override;
  bool may_have(uint32_t row) override;

  void check() const;
  bool anything() const;
  // With mutex_:
  Items take(uint64_t most);
  uint64_t take_from(Inlet& inlet, uint64_t most, Gathering& into);
  bool take_one(Inlet& inlet, Gathering& into);
  SpecRef spec_of(Inlet& inlet, const Ring::Record& record);
  void banish(Inlet& inlet, const std::string& why);
  ProducerCounts counts(Inlet& inlet) const;
  void bury();

  const std::string name_;
  const std::function<void()> while_waiting_;
  const std::shared_ptr<ChannelMemory> memory_;

  mutable std::mutex mutex_;  // all below; taken after the server's lock
  mutable std::vector<std::unique_ptr<Inlet>> inlets_;
  size_t next_ = 0;  // of them, whose turn it is
  std::deque<ProducerCounts> gone_;
  ProducerCounts long_gone_;
  std::unordered_map<std::string, SpecRef> specs_;  // by their bytes: one object for equal ones
  std::vector<std::byte> spec_bytes_;
  BatchMemory batches_;
  std::optional<std::string> complaint_;  // of a producer that was banished; the next get()'s error
  bool closed_ = false;

  NamedServer server_;  // last: it calls the above
};

}  // namespace penstock::train
