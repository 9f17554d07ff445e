#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/fork_aware.h"
#include "penstock/memory/example.h"
#include "penstock/pipeline/element/chunk.h"
#include "penstock/train/channel_memory.h"
#include "penstock/train/named_socket.h"
#include "penstock/train/ring.h"

namespace penstock::train {

struct ProducerOptions {
  int64_t timeout_ns = 60'000'000'000;  // to wait for a learner; < 0: no timeout, 0: one look
  bool reconnect = false;               // when the learner has ended, wait for the next one
  bool always_wait = false;             // while the ring is full, also under kDropNewest
  // Called about 20 times a second in the thread of a call that waits. May throw, which ends the
  // call.
  std::function<void()> while_waiting = nullptr;
};

// The end of a channel (channel.h) that items are put into, in any process of the learner's user.
//
// An item is copied once, into this producer's ring in shared memory (twice for kDropOldest). Items
// that a learner had not taken when it ended are lost, and counted by lost(); put() then throws
// kClosed, or waits for the next learner.
//
// A forked child is a producer of its own, and connects in its first call.
//
// Threads: any; items of several threads enter the ring one after the other.
class Producer final : private ForkAware {
 public:
  // Waits for a learner. Errors: kTimeout (no process has the channel, or its process does not
  // answer), kInvalidArgument (the name; the process with that name is not a learner, or another
  // user's), kOutOfMemory (address space; the learner has kProducers already), kSystem.
  explicit Producer(std::string name, ProducerOptions options = {});
  ~Producer();

  const std::string& name() const { return name_; }

  // Writes the item, a block of one row, to `block`.
  using Write = std::function<void(std::byte* block)>;
  enum class Attempt { kPut, kRefused, kNotYet };

  // Waits while the ring is full, if the channel's policy is kBlock, or `always_wait`. False: the
  // item was rejected (kDropNewest). Errors: kTimeout, kInvalidArgument (an item larger than the
  // ring), kClosed (this object or the channel was closed; the learner has ended), kOutOfMemory
  // (the ring's pages); as the constructor, where it connects. timeout_ns < 0: no timeout.
  bool put(const Example& item, int64_t timeout_ns = -1);
  bool put(const Chunk& in, uint32_t row, int64_t timeout_ns = -1);
  bool put(const ElementSpec& spec, uint64_t block_bytes, const Write& write,
           int64_t timeout_ns = -1);

  // put() in two steps, for callers that hold a lock while they try (the GIL): try_put() never
  // waits; after kNotYet, wait() sleeps until another attempt makes sense. `end_ns`: time of
  // now_ns(); UINT64_MAX: no end. An exception from `write` is passed on, and nothing was put.
  Attempt try_put(const ElementSpec& spec, uint64_t block_bytes, const Write& write);
  void wait(const ElementSpec& spec, uint64_t block_bytes, uint64_t end_ns);

  struct ChannelShape {
    uint64_t capacity;
    WhenFull when_full;
  };
  // Of the connected learner's channel; nullopt: none is connected now.
  std::optional<ChannelShape> channel_shape();

  uint64_t lost() const { return lost_.load(); }
  bool alive();  // whether a learner is connected now
  void close();  // ends all waits; later calls throw kClosed. Idempotent

 private:
  // A connection to one learner.
  struct Session {
    Session(std::shared_ptr<ChannelMemory> its_memory, uint32_t its_row);
    RingWords& words() const { return memory->words(row); }

    const std::shared_ptr<ChannelMemory> memory;
    const uint32_t row;
    const RingMapping mapping;
    Ring ring;
    uint64_t backed = 0;  // bytes of the ring that have memory; guarded by Turn
    Peer learner;
    uint64_t checked_ns = 0;  // when the learner was last known to be alive
  };
  using SessionRef = std::shared_ptr<Session>;
  class Turn;  // exclusive access to the ring

  void before_fork() noexcept override;
  void after_fork_in_parent() noexcept override;
  void after_fork_in_child() noexcept override;

  // With mutex_ held. Null: no learner yet.
  SessionRef current_session();
  SessionRef connect();
  bool ended(Session& session);
  void on_disconnect();

  SessionRef session();
  void wait_for_learner(uint64_t end_ns);
  int64_t wait_slice(uint64_t end_ns);
  Error timeout_error() const;

  const std::string name_;
  const int64_t timeout_ns_;
  const bool reconnect_;
  const bool always_wait_;
  const std::function<void()> while_waiting_;

  mutable std::mutex mutex_;  // held for a short time only: also held while the process forks
  SessionRef session_;
  std::optional<Peer> peer_;               // connected, greeting not yet received
  GreetingReader reader_;                  // for peer_
  std::optional<std::string> end_reason_;  // why the last learner ended, while there is no other
  bool inherited_ = false;                 // forked since the last call
  bool closed_ = false;

  // 1 while a Turn is held: while an item is written, user code included. No mutex, since a fork
  // would have to wait for it.
  std::atomic<uint32_t> writing_{0};
  std::atomic<uint32_t> turns_{0};  // incremented after each turn if a thread sleeps
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint64_t> lost_{0};
  std::vector<uint64_t> staging_;  // guarded by Turn: a record that is copied in by atomic words
};

}  // namespace penstock::train
