#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "penstock/base/byte_reader.h"
#include "penstock/net/connection.h"
#include "penstock/train/optimizer.h"
#include "penstock/train/server/shard_memory.h"
#include "penstock/train/server/shard_update.h"

namespace penstock::train {

// The follower's side of a shard with two replicas: makes the leader's changes in a memory of its
// own, in their order, and acknowledges each. A Shard over that memory then continues as leader.
//
// Threads: one; stop() any.
class ShardFollower {
 public:
  struct Options {
    uint64_t follower = 0;  // id of this process
    uint64_t server = 0;
    std::string secret = {};
    std::optional<bool> encrypt = std::nullopt;
    double silence_s = 10;  // from then on a leader that sends nothing is lost
  };
  // REQUIRED: no other object changes this memory while run() does.
  ShardFollower(std::shared_ptr<ShardMemory> memory, const Optimizer& optimizer,
                double compensation, Options options);

  // Follows the leader at an address, until it is lost or stop() was called. Returns the reason,
  // for people. The memory keeps the state of an earlier call until it gets the leader's.
  std::string run(const std::string& address);
  // run() ends soon, and later calls at once. Nothing is acknowledged after the return.
  void stop() noexcept;
  void resume();  // later calls follow again

  bool has_state() const { return has_state_; }  // the memory has had a leader's state

 private:
  std::shared_ptr<net::Connection> connect(const std::string& address);
  void receive_state(net::Connection& connection);
  void receive_entry(net::Connection& connection, const net::Received& message);
  void acknowledge(net::Connection& connection) const;
  std::vector<ShardUpdate::Part> receive_parts(net::Connection& connection, ByteReader& head,
                                               uint32_t parts, uint64_t body_bytes);

  const std::shared_ptr<ShardMemory> memory_;
  ShardUpdate update_;
  const bool compensated_;
  const Options options_;
  std::mutex mutex_;
  bool stopped_ = false;                         // under mutex_
  std::shared_ptr<net::Connection> connection_;  // of the running call, under mutex_
  bool has_state_ = false;
  uint64_t number_ = 0;  // of the last change
  std::vector<std::vector<float>> received_;
  std::vector<Gradient> gradients_;
};

}  // namespace penstock::train
