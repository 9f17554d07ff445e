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
  int64_t timeout_ns = 60'000'000'000;  // for a learner to be there; < 0: for ever, 0: one look
  bool reconnect = false;               // when a learner is gone, wait for the next one
  // Called from time to time in the thread of a call that waits. May throw, which ends the call.
  std::function<void()> while_waiting = nullptr;
};

// The end of a channel (channel.h) that items are put into, in any process of the learner's user.
//
// An item is copied once, into the ring that this producer has in the learner's memory (twice where
// the oldest may be dropped). A learner that ends takes with it what it had not taken, which
// lost() counts; put() is then kClosed, or waits for the next learner.
//
// A forked child is a producer of its own, and connects in its first call.
//
// Threads: any; items of several threads get into the ring one after the other.
class Producer final : private ForkAware {
 public:
  // Waits for a learner. Errors: kTimeout (nobody has the channel, or does not answer),
  // kInvalidArgument (the name; who has it is no learner, or another user's), kOutOfMemory (address
  // space; the learner has kProducers already), kSystem.
  explicit Producer(std::string name, ProducerOptions options = {});
  ~Producer();

  const std::string& name() const { return name_; }

  // What a put is made of. Writes the item, a block of one row, to where it is told.
  using Write = std::function<void(std::byte* block)>;
  enum class Attempt { kPut, kRefused, kNotYet };

  // Waits while the ring is full, if that is what the channel does then. False: the item was not
  // let in (kDropNewest). Errors: kTimeout (< 0: never), kInvalidArgument (an item that is larger
  // than the ring), kClosed (this, or the channel; the learner is gone), kOutOfMemory (the ring's);
  // as the constructor, where it connects.
  bool put(const Example& item, int64_t timeout_ns = -1);
  bool put(const Chunk& in, uint32_t row, int64_t timeout_ns = -1);
  bool put(const ElementSpec& spec, uint64_t block_bytes, const Write& write,
           int64_t timeout_ns = -1);

  // The same in two steps, for who must not wait with what it holds: an attempt, which waits for
  // nothing; and after kNotYet, sleeping until another attempt is worth it. `end_ns` of now_ns()'s
  // clock; UINT64_MAX: for ever. What `write` throws is passed on, and nothing was put.
  Attempt try_put(const ElementSpec& spec, uint64_t block_bytes, const Write& write);
  void wait(const ElementSpec& spec, uint64_t block_bytes, uint64_t end_ns);

  uint64_t lost() const { return lost_.load(); }
  bool alive();  // there is a learner now
  void close();  // ends all waits; calls after that are kClosed. Idempotent

 private:
  // A connection to one learner.
  struct Session {
    Session(std::shared_ptr<ChannelMemory> its_memory, uint32_t its_row);
    RingWords& words() const { return memory->words(row); }

    const std::shared_ptr<ChannelMemory> memory;
    const uint32_t row;
    const RingMapping mapping;
    Ring ring;
    uint64_t backed = 0;  // bytes of the ring that have memory; with the turn
    Peer learner;
    uint64_t looked_ns = 0;  // when it was there last
  };
  using SessionRef = std::shared_ptr<Session>;
  class Turn;  // at the ring

  void before_fork() noexcept override;
  void after_fork_in_parent() noexcept override;
  void after_fork_in_child() noexcept override;

  // With mutex_: null if there is none yet.
  SessionRef now();
  SessionRef connect();
  bool ended(Session& session);
  void mourn();

  SessionRef session();
  void wait_for_learner(uint64_t end_ns);
  int64_t patience(uint64_t end_ns);
  Error nobody() const;

  const std::string name_;
  const int64_t timeout_ns_;
  const bool reconnect_;
  const std::function<void()> while_waiting_;

  mutable std::mutex mutex_;  // short: also held while the process forks
  SessionRef session_;
  std::optional<Peer> peer_;         // connected, and nothing more yet
  GreetingReader reader_;            // of that
  std::optional<std::string> over_;  // how the last learner ended, while there is no other
  bool inherited_ = false;           // this process was forked, and has called nothing since
  bool closed_ = false;

  // Whose turn it is at the ring: held while an item is written, and while user code makes it, so
  // it is no mutex, which a fork would have to wait for.
  std::atomic<uint32_t> writing_{0};
  std::atomic<uint32_t> turns_{0};  // goes on after each, if somebody sleeps
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint64_t> lost_{0};
  std::vector<uint64_t> staging_;  // with the turn: an item that must be copied in by words
};

}  // namespace penstock::train
