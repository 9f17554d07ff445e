#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/train/gradient_parts.h"
#include "penstock/train/server/shard_link.h"
#include "penstock/train/slab.h"

namespace penstock::train {

struct ClientOptions {
  std::string name = {};  // "": the process id; see Shard::Worker
  // Identifies the worker beyond this object; 0: a random number, for this object alone. A client
  // that connects with the id of an earlier one takes over from it, and continues at sequence().
  uint64_t worker_id = 0;
  std::string secret = {};                   // the server's secret, over TCP
  std::optional<bool> encrypt = {};          // whether TCP is encrypted; see net::LinkOptions
  double retry_s = 60;                       // seconds that a shard may be unreachable or silent
  Encoding encoding = Encoding::kFloat32;    // of gradients
  double top_k = 0.01;                       // kTopK: the fraction of the floats to send, in (0, 1]
  std::function<void()> while_waiting = {};  // see ShardLink::Worker
  // A call uses a thread for each so many bytes that it moves over connections, up to one for each
  // shard. More than 0. Several threads gain nothing for less.
  size_t bytes_a_thread = size_t{8} << 20;
};

// A worker of a parameter server: pulls weights and pushes gradients. Each push is applied once at
// each shard, even if a shard is killed and restarted or a connection is cut: the client reconnects
// and repeats requests that were not answered.
//
// Threads: any; calls run one at a time. A forked child must make a client of its own.
class ParameterClient {
 public:
  // The addresses of all shards of one server, in any order. Errors: kInvalidArgument (shards of
  // different servers, a missing shard; options), kTimeout (no answer within retry_s), kSystem.
  ParameterClient(const std::vector<std::string>& addresses, ClientOptions options);
  // The same for shards that may move: the resolver tells where they are.
  ParameterClient(std::shared_ptr<ShardResolver> resolver, ClientOptions options);
  ~ParameterClient();
  ParameterClient(const ParameterClient&) = delete;
  ParameterClient& operator=(const ParameterClient&) = delete;

  const Layout& layout() const { return *layout_; }
  const std::string& name() const { return options_.name; }
  uint64_t worker() const { return worker_; }
  // The number of this worker's last push, counted from 1. After connecting: of the last push that
  // every shard has decided on. If the next one was applied by some shards before an earlier client
  // ended, they answer it from the ledger, and only the others apply it.
  uint64_t sequence() const { return sequence_; }
  size_t shards() const { return links_.size(); }
  bool local() const;  // whether some shard reads gradients from shared memory

  // Copies the weights from every shard as they are at that moment. Returns each shard's version,
  // in the order of their ranges: all updates up to that version are included, and parts may be
  // newer. Errors: kInvalidArgument (layout; another server has an address now), kTimeout (a shard
  // was unreachable for retry_s).
  std::vector<uint64_t> pull(const Slab& into);

  struct Pushed {
    bool applied = true;  // false: not finite and skipped, or the lease had expired
    // The lease had expired: the weights were too old; pull again. If it had expired at some shards
    // only, the others have applied their part.
    bool lapsed = false;
    std::vector<uint64_t> versions;
  };
  // Pushes to all shards; returns when each has decided on the push, as the server's mode says. The
  // slab must not be written meanwhile. Errors as pull(); kInvalidArgument also for a non-finite
  // gradient, if that is the server's policy. After kTimeout some shards may have applied the push.
  // If the mode may hold pushes, a shard that has received the push may take any time to answer.
  Pushed push(const Slab& gradients);
  // Pushes some blocks, or some rows of them. Only these are sent and changed, the optimizer's
  // state included; it is an update at all shards, even without rows. Where pushes are averaged,
  // missing parts count as zero. Errors as push(); also kNotFound and kInvalidArgument as
  // GradientParts::set(), and for a client that compresses or a server with delay compensation;
  // then nothing was sent.
  Pushed push(std::span<const GradientPart> parts);
  // Pushes, and pulls weights that have the push, in one exchange with each shard: a shard sends
  // its weights as soon as it has decided on the push, while others still receive theirs. `into`
  // must not share memory with the gradients. Pushed::versions are those of the weights, as of
  // pull(). Errors of both.
  Pushed push_pull(const Slab& gradients, const Slab& into);
  Pushed push_pull(std::span<const GradientPart> parts, const Slab& into);

  // Tells all shards that this worker is alive, so that its lease does not expire during a long
  // step; reconnects to shards that were restarted. Does nothing during another call, which is a
  // sign of life itself. Call it from another thread, several times in lease(). A shard that does
  // not answer within a second is tried again by the next call. Errors: those of while_waiting().
  void beat();
  double lease() const { return lease_s_; }  // seconds; see ServerMode

  // A JSON list with an object for each shard; see Shard::stats().
  std::string stats();

  // Leaves the server: no shard waits for this worker any more. Ends calls of other threads by
  // kClosed, and the push that shards hold for one is not applied later. In while_waiting(), where
  // a signal may be handled, it ends that call. Later calls throw kClosed, also if close() throws
  // an exception of while_waiting(). Does nothing in a forked child, where other calls throw
  // kInvalidArgument.
  void close();

 private:
  // A call under way: has mutex_, and its thread is calling_.
  class Call {
   public:
    Call(ParameterClient& client, std::unique_lock<std::mutex> lock)
        : client_(client), lock_(std::move(lock)) {
      client_.calling_ = std::this_thread::get_id();
    }
    ~Call() { client_.calling_ = std::thread::id(); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    ParameterClient& client_;
    const std::unique_lock<std::mutex> lock_;
  };
  Call begin(const char* operation);
  template <typename Ask, typename Take>
  void call_all(const char* operation, size_t bytes, Ask ask, Take take);
  void on_threads(size_t count, const std::function<void(size_t, size_t)>& work) const;
  size_t bytes_from_others() const;
  void poll_caller() const;
  void cancel_pushes(const std::vector<ShardLink*>& asked) noexcept;
  void leave();
  void leave_all();
  void check_shards();
  const Slab& as_shared(const Slab& gradients);
  // With `into` they also pull. REQUIRED: begin() was called.
  Pushed push_all(const Slab& gradients, const Slab* into);
  Pushed push_all(std::span<const GradientPart> parts, const Slab* into);
  Pushed send_to_all(std::vector<ShardLink::Push>& parts, Encoding encoding, double squares,
                     const Slab* into);
  void keep_base(const Slab& pulled);

  ClientOptions options_;
  const pid_t pid_;
  uint64_t worker_;
  std::mutex mutex_;
  std::atomic<bool> closing_{false};
  std::atomic<std::thread::id> calling_{};  // the thread that is in a call
  bool closed_ = false;
  std::vector<std::unique_ptr<ShardLink>> links_;  // in the order of their ranges
  std::optional<Layout> layout_;
  bool compensated_ = false;
  double lease_s_ = 0;
  NonFinite non_finite_ = NonFinite::kRaise;
  std::atomic<uint64_t> sequence_{0};        // written under mutex_
  std::optional<Deadline> cancel_deadline_;  // set while pushes are cancelled
  SlabNumbers names_;
  std::optional<Slab> staging_;   // shared copy of gradients in private memory
  std::optional<Slab> base_;      // the pulled weights, for delay compensation
  std::optional<Slab> residual_;  // top-k: the part that was not sent yet
  std::vector<std::vector<std::byte>> encoded_;
  GradientParts parts_;
};

}  // namespace penstock::train
