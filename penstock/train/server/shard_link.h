#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/net/connection.h"
#include "penstock/train/layout.h"
#include "penstock/train/server/gradient.h"
#include "penstock/train/server/shard.h"
#include "penstock/train/server/shard_messages.h"
#include "penstock/train/server/shard_resolver.h"
#include "penstock/train/slab.h"

namespace penstock::train {

// Numbers under which a worker's links register slabs with shards. One thread.
class SlabNumbers {
 public:
  // The number of a slab, which is kept alive from now on; the least recently used one is dropped
  // if there are many.
  uint64_t number_of(const Slab& slab);

 private:
  struct Named {
    Slab slab;
    uint64_t number;
  };
  std::vector<Named> slabs_;
  uint64_t next_ = 1;
};

// A worker's connection to one shard. Connects, and reconnects after the connection was cut or the
// shard was restarted. One thread.
//
// Errors of all members that communicate: kClosed, kTimeout, kDataLoss, kNotFound, kSystem: the
// connection is unusable, and the next connect() makes another; other errors are the shard's
// answers.
class ShardLink {
 public:
  struct Worker {
    uint64_t id = 0;
    bool chosen = false;  // see Shard::Worker
    std::string name;
    std::string secret;
    std::optional<bool> encrypt = {};
    double stall_timeout_s = 60;
    // Called several times a second while waiting for an answer; may throw, which ends the wait.
    std::function<void()> while_waiting;
  };
  // REQUIRED: `shard` < resolver->shards().
  ShardLink(std::shared_ptr<ShardResolver> resolver, size_t shard, Worker worker);

  // Connects if there is no connection. From now on the answer to a request must begin within
  // `timeout_s` (at least a second), unless the shard may hold it; else kTimeout. The layout and
  // the server must be those of the former connection, if any. A shard whose epoch is lower than
  // another that this link has seen is kClosed: it has been replaced.
  void connect(double timeout_s);
  // Sets that limit; at least a second, unless timeout_s is 0 or less.
  void limit_wait(double timeout_s);
  void drop();  // closes the connection, if there is one

  const std::string& address() const { return address_; }  // at the last connect()
  bool local() const { return local_; }
  // From the last answer to a hello, as is local(). REQUIRED: connected once.
  const Layout& layout() const { return *layout_; }
  Range range() const { return {server_.begin, server_.end}; }
  const wire::ServerHead& server() const { return server_; }

  // A push; spans have the size of this shard's range.
  struct Push {
    uint64_t sequence = 0;
    double squares = 0;
    Encoding encoding = Encoding::kFloat32;
    std::span<const std::byte>
        gradient;                 // sent as the message's body: the part that is not in the slab
    std::span<const float> base;  // empty: none
    const Slab* slab = nullptr;   // slab with the gradient; for runs, with their floats
    uint64_t slab_number = 0;
    const Slab* base_slab = nullptr;  // slab with the whole base weights
    uint64_t base_number = 0;
  };
  void send_push(const Push& push, bool pulls = false);
  // With `pulls` in send_push(): also receives weights that have the push. The answer then has
  // their version, as end_pull().
  Shard::Answer receive_push(std::optional<std::span<float>> pulled = {});

  // Pulls this shard's weights into `into`. begin_pull() sends the request (nothing on the same
  // host), end_pull() receives them. Returns a version that the weights have at least.
  void begin_pull();
  uint64_t end_pull(std::span<float> into);

  // Tells the shard that this worker has connected to all shards; repeated after a reconnect.
  void send_ready();
  void send_alive();  // tells the shard that this worker is alive
  std::string stats();
  // Tells the shard that this worker leaves, waits up to `wait_s` for the answer, and drops the
  // connection. Throws only exceptions of while_waiting(): a shard that does not get the message
  // forgets the worker when its lease expires.
  void bye(double wait_s);

 private:
  struct Answer {
    wire::AnswerHead head;
    std::vector<std::byte> rest;
    uint64_t body_bytes = 0;
    os::Fd descriptor;
  };
  void ask(wire::Ask what, std::span<const std::byte> rest = {},
           std::span<const std::span<const std::byte>> body = {}, int descriptor = -1);
  Answer answer(double wait_s);
  std::string text_body(uint64_t bytes);
  uint64_t weights_body(const Answer& said, std::span<float> into);
  void register_slab(const Slab& slab, uint64_t number);

  const std::shared_ptr<ShardResolver> resolver_;
  const size_t shard_;
  const Worker worker_;
  std::string address_;
  uint64_t epoch_ = 0;  // the highest that was seen
  std::unique_ptr<net::Connection> connection_;
  bool local_ = false;
  double wait_s_ = 0;
  std::optional<Layout> layout_;
  wire::ServerHead server_;
  bool ready_ = false;
  std::shared_ptr<ShardMemory> memory_;  // on the same host
  std::vector<uint64_t> known_slabs_;    // numbers of slabs registered on this connection
  uint64_t base_version_ = 0;            // of the last pull
  uint64_t pulls_ = 0;  // pulls that the shard did not see, and the time of the last
  uint64_t pulled_ns_ = 0;
  uint64_t asked_ = 0;    // number of the push that this connection has sent, until its answer
  uint64_t decided_ = 0;  // see Shard::Worker
  uint64_t in_doubt_ = 0;
};

// Statistics of the shard at an address, as JSON; see Shard::stats(). The caller is not a worker,
// so no shard waits for it. Connects, asks and disconnects. `secret` and `encrypt` are the
// server's. while_waiting is called several times a second and may throw. Threads: any.
//
// Errors: those of net::connect(); kTimeout, kClosed, kDataLoss (the peer is not a shard).
std::string shard_stats(const std::string& address, const std::string& secret,
                        std::optional<bool> encrypt, double timeout_s,
                        const std::function<void()>& while_waiting = {});

}  // namespace penstock::train
