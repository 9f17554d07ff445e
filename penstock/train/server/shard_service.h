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
#include "penstock/train/server/partition.h"
#include "penstock/train/server/shard.h"

namespace penstock::train {

// Which shard of which server this is.
struct ShardPlace {
  Layout layout;
  Range range;
  uint64_t server = 0;  // the same for all shards of a server, and not 0
};

// Serves one shard at some addresses: a thread for each, and one for each connection. Whoever sends
// what cannot be is answered with an error, or cut off; nobody else notices.
//
// Threads: any. A forked child does not serve: there, this object is empty.
class ShardService final : private ForkAware {
 public:
  // Errors as of net::Listener.
  ShardService(std::shared_ptr<Shard> shard, ShardPlace place, ServerMode mode,
               const std::vector<std::string>& addresses, const std::string& secret, bool encrypt);
  ~ShardService();

  // As connect() takes them, in the order given, with free ports and names filled in.
  std::vector<std::string> addresses() const;

  // Ends all connections and waits for their threads. The shard is closed. Called once or never.
  void close();

 private:
  struct Line {
    std::unique_ptr<net::Connection> connection;
    std::thread thread;
    std::atomic<bool> ended{false};
  };
  class Session;

  void after_fork_in_child() noexcept override;
  void listen(net::Listener& listener) noexcept;
  void admit(std::unique_ptr<net::Connection> connection);
  void bury_ended();

  const std::shared_ptr<Shard> shard_;
  // What pulls are sent from. The kernel copies from it while updates change the same memory; or
  // the cipher does, which authenticates what it wrote and not what it read.
  const std::shared_ptr<ShardMemory> view_;
  const ShardPlace place_;
  const ServerMode mode_;
  std::vector<std::unique_ptr<net::Listener>> listeners_;
  std::vector<std::thread> accepting_;
  std::mutex mutex_;
  std::list<std::unique_ptr<Line>> lines_;
  bool closing_ = false;
  std::atomic<bool> inherited_{false};
};

}  // namespace penstock::train
