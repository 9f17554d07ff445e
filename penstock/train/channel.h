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

#include "penstock/train/batch_assembler.h"
#include "penstock/train/channel_memory.h"
#include "penstock/train/named_socket.h"

namespace penstock::train {

struct ChannelOptions {
  uint64_t capacity = uint64_t{16} << 20;  // bytes of each producer's ring
  WhenFull when_full = WhenFull::kBlock;
  // Called about 10 times a second in the thread of a get() that waits. May throw, which ends the
  // call.
  std::function<void()> while_waiting = nullptr;
};

// Counts of one producer's items. put == got + dropped + queued.
struct ProducerCounts {
  pid_t pid = 0;         // 0: the sum of several producers
  bool alive = false;    // connected now
  uint64_t put = 0;      // items put into the ring
  uint64_t got = 0;      // items taken by the learner
  uint64_t dropped = 0;  // dropped for newer ones (kDropOldest), or invalid
  uint64_t refused = 0;  // rejected because the ring was full (kDropNewest); not counted in `put`
  uint64_t queued = 0;
};

// The learner's end of a channel: takes items that producers (producer.h) put. Producers are
// processes of this user that know the channel's name. Each has a ring of its own in shared memory,
// so producers never wait for each other, and one that is killed at any instruction loses at most
// the item that it was writing. The learner reads the rings in turn, so none starves.
// docs/training.md, section 6.
//
// The name belongs to this object until it is destroyed. In a forked child the object is unusable:
// the channel is the parent's.
//
// Threads: any.
class Channel final : private NamedServer::Handler {
 public:
  // Errors: kInvalidArgument (an invalid name, or another process has it; capacity), kOutOfMemory,
  // kSystem.
  explicit Channel(std::string name, ChannelOptions options = {});
  ~Channel();

  const std::string& name() const { return name_; }
  uint64_t capacity() const { return memory_->capacity(); }
  WhenFull when_full() const { return memory_->when_full(); }

  // Waits for an item, and takes up to `most`; the items of one producer keep their order. Returns
  // none after the timeout (< 0: no timeout). Errors: kInvalidArgument (most is 0; a forked child),
  // kClosed, kDataLoss (a producer put an invalid item; the producer is named and evicted, nothing
  // else is lost), kOutOfMemory (nothing was taken).
  Items get(uint64_t most, int64_t timeout_ns = -1);

  // Counts of each producer, including the last kProducers that disconnected, and one sum for those
  // before them. Any time, also after close(). Error kInvalidArgument: a forked child.
  std::vector<ProducerCounts> stats() const;
  size_t producers() const { return server_.peers(); }  // connected now

  // Ends all waits, here and in producers; items in the rings are lost. Idempotent. Does nothing in
  // a forked child.
  void close();

 private:
  // A producer's ring, kept until the producer has disconnected and all its items were taken.
  struct ProducerRing {
    ProducerRing(uint32_t its_row, pid_t its_pid, RingMapping mapped, Ring its_ring)
        : row(its_row), pid(its_pid), mapping(std::move(mapped)), ring(its_ring) {}

    uint32_t row;
    pid_t pid;
    RingMapping mapping;
    Ring ring;
    bool alive = true;     // connected now
    bool evicted = false;  // it put an invalid item: nothing more is taken from it
    uint64_t got = 0;
    SpecRef spec;  // of its last item
  };

  std::optional<int> on_connect(uint32_t row, pid_t pid) override;
  void on_disconnect(uint32_t row) override;
  bool is_available(uint32_t row) override;

  void check() const;
  bool has_items() const;
  // With mutex_:
  Items take(uint64_t most);
  uint64_t take_from(ProducerRing& producer, uint64_t most, BatchAssembler& into);
  bool take_one(ProducerRing& producer, BatchAssembler& into);
  SpecRef spec_of(ProducerRing& producer, const Ring::Record& record);
  void evict(ProducerRing& producer, const std::string& why);
  ProducerCounts counts(const ProducerRing& producer) const;
  void reap();

  const std::string name_;
  const std::function<void()> while_waiting_;
  const std::shared_ptr<ChannelMemory> memory_;

  mutable std::mutex mutex_;  // guards all below; locked after the server's lock
  mutable std::vector<std::unique_ptr<ProducerRing>> rings_;
  size_t next_ = 0;  // index of the ring that is read next
  std::deque<ProducerCounts> past_counts_;
  ProducerCounts older_counts_;
  // By their bytes, so that equal specs are one object.
  std::unordered_map<std::string, SpecRef> specs_;
  std::vector<std::byte> spec_bytes_;
  BatchPool batches_;
  std::optional<std::string> eviction_error_;  // of an evicted producer; thrown by the next get()
  bool closed_ = false;

  NamedServer server_;  // last: it calls the members above
};

}  // namespace penstock::train
