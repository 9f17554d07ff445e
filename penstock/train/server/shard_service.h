#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "penstock/base/fork_aware.h"
#include "penstock/net/connection.h"
#include "penstock/net/listener.h"
#include "penstock/train/layout.h"
#include "penstock/train/server/gradient_pool.h"
#include "penstock/train/server/shard.h"

namespace penstock::train {

// Identifies a shard: its weights, range and server.
struct ShardPlace {
  Layout layout;
  Range range;
  uint64_t server = 0;  // the server's id: not 0, the same for all its shards
  // See claim_epoch(). A worker that has seen a higher one is refused: this shard has been
  // replaced. 0: none.
  uint64_t epoch = 0;
  // Of a shard with two replicas; it has the epoch then. Null: one replica.
  std::shared_ptr<ReplicaLog> replicas = nullptr;
};

// Serves one shard at some addresses, with a thread for each address and each connection. A peer
// that sends invalid messages gets an error or is disconnected; others are not affected.
//
// Threads: any. A forked child does not serve: there this object is empty.
class ShardService final : private ForkAware {
 public:
  // Workers, and others that ask for statistics. Each connection has a thread.
  static constexpr size_t kMaxConnections = kMaxWorkers + 64;

  // Connections above `max_connections` are refused; their clients try again. Errors of
  // net::Listener.
  ShardService(std::shared_ptr<Shard> shard, ShardPlace place, ServerMode mode,
               const std::vector<std::string>& addresses, const std::string& secret,
               std::optional<bool> encrypt, size_t max_connections = kMaxConnections);
  ~ShardService();

  // The addresses for connect(), in the given order, with the chosen ports and names.
  std::vector<std::string> addresses() const;

  // Closes the shard, ends all connections and joins their threads. Call at most once.
  void close();

 private:
  struct Client {
    std::unique_ptr<net::Connection> connection;
    std::thread thread;
    std::atomic<bool> ended{false};
  };
  class Session;

  void after_fork_in_child() noexcept override;
  void listen(net::Listener& listener) noexcept;
  void admit(std::unique_ptr<net::Connection> connection);
  void reap_ended();
  uint64_t epoch() const { return place_.replicas ? place_.replicas->epoch() : place_.epoch; }

  const std::shared_ptr<Shard> shard_;
  // The mapping that pulls are sent from. The kernel (or the cipher, which authenticates its
  // output) reads it while updates change the same memory.
  const std::shared_ptr<ShardMemory> view_;
  const ShardPlace place_;
  const ServerMode mode_;
  const size_t max_connections_;
  std::unique_ptr<GradientPool> gradients_;
  std::vector<std::unique_ptr<net::Listener>> listeners_;
  std::vector<std::thread> accepting_;
  std::mutex mutex_;
  std::list<std::unique_ptr<Client>> clients_;
  bool closing_ = false;
  std::atomic<bool> inherited_{false};
};

}  // namespace penstock::train
