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
#include "penstock/train/server/partition.h"
#include "penstock/train/server/shard.h"
#include "penstock/train/server/shard_messages.h"
#include "penstock/train/slab.h"

namespace penstock::train {

// Slabs by the numbers under which shards know them: what a worker's links share. One thread.
class NamedSlabs {
 public:
  // The number of a slab, which is kept from now on; the one that was used least recently goes if
  // there are many.
  uint64_t number_of(const Slab& slab);

 private:
  struct Named {
    Slab slab;
    uint64_t number;
  };
  std::vector<Named> slabs_;
  uint64_t next_ = 1;
};

// A worker's end of the line to one shard. Connects, and connects again after the line was cut or
// the shard was started anew. One thread.
//
// Errors of all that talks: kClosed, kTimeout, kDataLoss, kNotFound, kSystem where the line is of
// no use (lost() says so, and the next call connects again); others are the shard's own.
class ShardLink {
 public:
  struct Worker {
    uint64_t id = 0;
    std::string name;
    std::string secret;
    bool encrypt = false;
    double stall_timeout_s = 60;
    // Called several times a second by whoever waits for an answer; may throw, which ends the wait.
    std::function<void()> while_waiting;
  };
  ShardLink(std::string address, Worker worker);

  // Does nothing if there is a connection, but for this: from now on, an answer that no shard holds
  // back has to begin within `timeout_s` (a second at least) of its question; else kTimeout. The
  // layout and the server are those that there were before, if any.
  void connect(double timeout_s);
  // The same from now on; a second, unless there is no time left at all.
  void wait_no_longer_than(double timeout_s);
  void drop();  // the connection, if there is one

  const std::string& address() const { return address_; }
  bool local() const { return local_; }
  // As the last hello was answered; local(), too. REQUIRED: connected once.
  const Layout& layout() const { return *layout_; }
  Range range() const { return {server_.begin, server_.end}; }
  const wire::ServerHead& server() const { return server_; }

  // What a push is made of; spans are this shard's range.
  struct Push {
    uint64_t sequence = 0;
    double squares = 0;
    Encoding encoding = Encoding::kFloat32;
    std::span<const std::byte> gradient;  // sent as a body: what is not in the slab
    std::span<const float> base;          // empty: none
    const Slab* slab = nullptr;           // where it is; of runs, their floats
    uint64_t slab_number = 0;
    const Slab* base_slab = nullptr;  // where the base is, whole
    uint64_t base_number = 0;
  };
  void send_push(const Push& push);
  Shard::Answer receive_push();

  // The weights into `into`, of this shard's size: begin_pull() asks (or does nothing, on the same
  // host), end_pull() takes them. Returns the version that they have at least.
  void begin_pull();
  uint64_t end_pull(std::span<float> into);

  // Says that this worker has connected to all shards, also to a shard that is started anew.
  void say_ready();
  std::string stats();
  // Says that this worker will not be back, waits so long for an answer, and drops the connection.
  // Throws only what while_waiting() does, no Error: a shard that does not hear it forgets this
  // worker when its lease ends.
  void bye(double patience_s);

 private:
  struct Answer {
    wire::AnswerHead head;
    std::vector<std::byte> rest;
    uint64_t body_bytes = 0;
    os::Fd descriptor;
  };
  void ask(wire::Ask what, std::span<const std::byte> rest = {},
           std::span<const std::span<const std::byte>> body = {}, int descriptor = -1);
  Answer answer(double patience_s);
  std::string text_body(uint64_t bytes);
  void name_slab(const Slab& slab, uint64_t number);

  const std::string address_;
  const Worker worker_;
  std::unique_ptr<net::Connection> connection_;
  bool local_ = false;
  double patience_s_ = 0;
  std::optional<Layout> layout_;
  wire::ServerHead server_;
  bool ready_ = false;
  std::shared_ptr<ShardMemory> memory_;  // on the same host
  std::vector<uint64_t> named_;          // slabs that this connection knows
  uint64_t base_version_ = 0;            // of the last pull
  uint64_t pulls_ = 0;                   // that the shard saw nothing of, and when the last was
  uint64_t pulled_ns_ = 0;
};

}  // namespace penstock::train
