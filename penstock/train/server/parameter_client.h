#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/train/gradient_parts.h"
#include "penstock/train/server/shard_link.h"
#include "penstock/train/slab.h"

namespace penstock::train {

struct ClientOptions {
  std::string name = {};                     // "": the process's number; see Shard::Worker
  std::string secret = {};                   // of the server, over TCP
  bool encrypt = false;                      // as the server does, over TCP; takes a secret
  double retry_s = 60;                       // how long a shard may be gone, or say nothing
  Encoding encoding = Encoding::kFloat32;    // of gradients
  double top_k = 0.01;                       // kTopK: which part of the floats is sent, in (0, 1]
  std::function<void()> while_waiting = {};  // see ShardLink::Worker
};

// A worker of a parameter server: pulls weights and pushes gradients. Every push counts once at
// every shard, also if a shard is killed and started anew meanwhile, or a line is cut: it connects
// again and sends again what was not answered.
//
// Threads: any; one call at a time goes on. A forked child makes a client of its own.
class ParameterClient {
 public:
  // Addresses of all shards of one server, in any order. Errors: kInvalidArgument (addresses of
  // several servers, or not of all shards; options), kTimeout (no answer in retry_s), kSystem.
  ParameterClient(const std::vector<std::string>& addresses, ClientOptions options);
  ~ParameterClient();
  ParameterClient(const ParameterClient&) = delete;
  ParameterClient& operator=(const ParameterClient&) = delete;

  const Layout& layout() const { return *layout_; }
  const std::string& name() const { return options_.name; }
  uint64_t worker() const { return worker_; }
  size_t shards() const { return links_.size(); }
  bool local() const;  // whether gradients go through shared memory to some shard

  // The weights, from every shard as they are there now. Returns each shard's version, in the order
  // of their ranges: every update up to it is in the weights, and parts may be newer.
  // Errors: kInvalidArgument (layout; another server has an address now), kTimeout: a shard was
  // gone for retry_s.
  std::vector<uint64_t> pull(const Slab& into);

  struct Pushed {
    bool applied = true;  // false: not finite and skipped, or the lease had ended
    // The lease had ended: weights were too old; pull. Where it had at some shards only, the others
    // have applied their part.
    bool lapsed = false;
    std::vector<uint64_t> versions;
  };
  // One push to all shards; waits until each has it, and as the server's mode says. The slab is
  // only read, and not written to by anybody meanwhile. Errors as pull; kInvalidArgument also for a
  // gradient that is not finite, if that is the server's policy. After kTimeout some shards may
  // have applied it. Where the mode may hold pushes, a shard that has it is waited for, for ever.
  Pushed push(const Slab& gradients);
  // One push of some blocks, or some rows of them, which are all that travels and all that shards
  // touch, the optimizer's state included; it counts as an update at all shards, also with no rows.
  // Where pushes are averaged, what a worker leaves out counts as zero. Errors as push(); also
  // kNotFound and kInvalidArgument as GradientParts::set(), and for a client that compresses and a
  // server that compensates. Nothing was sent then.
  Pushed push(std::span<const GradientPart> parts);

  // A JSON list with an object for each shard; see Shard::stats().
  std::string stats();

  // Tells the shards that this worker will not be back. Later calls are kClosed, also if it throws
  // what while_waiting() does. Nothing in a forked child, where other calls are kInvalidArgument.
  void close();

 private:
  std::unique_lock<std::mutex> begin(const char* operation);  // of a call
  template <typename Ask, typename Take>
  void converse(const char* operation, Ask ask, Take take);
  void look_around() const;
  void take_back(const std::vector<ShardLink*>& asked) noexcept;
  void say_goodbye();
  void arrange();
  const Slab& sendable(const Slab& gradients);
  Pushed deliver(std::vector<ShardLink::Push>& parts, Encoding encoding, double squares);

  ClientOptions options_;
  const pid_t pid_;
  uint64_t worker_;
  std::mutex mutex_;
  bool closed_ = false;
  std::vector<std::unique_ptr<ShardLink>> links_;  // in the order of their ranges
  std::optional<Layout> layout_;
  bool compensated_ = false;
  NonFinite non_finite_ = NonFinite::kRaise;
  uint64_t sequence_ = 0;
  std::optional<Deadline> enough_;  // while pushes are taken back
  NamedSlabs names_;
  std::optional<Slab> staging_;   // for gradients in private memory
  std::optional<Slab> base_;      // the weights that were pulled, for compensation
  std::optional<Slab> residual_;  // what top-k has not sent yet
  std::vector<std::vector<std::byte>> encoded_;
  GradientParts parts_;
};

}  // namespace penstock::train
