#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "penstock/train/parameters.h"
#include "penstock/train/server/shard_files.h"
#include "penstock/train/server/shard_service.h"

namespace penstock::train {

struct ServerOptions {
  size_t shards = 1;
  ServerMode mode = {};
  // Where each shard listens: an address for each shard, or one for all, whose port, if it is not
  // 0, is the first shard's, those of the others coming after it. Empty: at a free name on this
  // host.
  std::vector<std::string> listen = {};
  std::string secret = {};  // see net::LinkOptions; hosts other than this one need it
  bool encrypt = false;     // lines over TCP, to clients that want it too; takes a secret
  // A folder for snapshots: if it has those of this server, it goes on from them. Empty: none.
  std::string snapshots = {};
  double snapshot_s = 60;  // between two
  uint32_t copies = 1;     // of weights and state; 2: see ShardMemory
};

// A server's addresses for its shards, from what was given. Error kInvalidArgument.
std::vector<std::string> listen_addresses(const ServerOptions& options);

// A server's shards, with its weights or those of its snapshots. Errors as ParameterServer.
std::vector<std::shared_ptr<Shard>> make_shards(const Parameters& parameters,
                                                const Optimizer& optimizer,
                                                const ServerOptions& options);

// A parameter server whose shards are threads of this process. Weights are copied from the
// parameters, and live in the shards from then on. docs/training.md, section 8.
//
// Threads: any. A forked child does not serve: close() does nothing there, read() and stats() are
// kInvalidArgument.
class ParameterServer {
 public:
  // Errors: kInvalidArgument, kOutOfMemory, kSystem.
  ParameterServer(const Parameters& parameters, const Optimizer& optimizer,
                  const ServerOptions& options);
  ~ParameterServer();
  ParameterServer(const ParameterServer&) = delete;
  ParameterServer& operator=(const ParameterServer&) = delete;

  const Layout& layout() const { return layout_; }
  const std::vector<std::string>& addresses() const { return addresses_; }  // for connect()

  // The weights as they are now. Returns each shard's version. Error kInvalidArgument: layout.
  std::vector<uint64_t> read(const Slab& into) const;
  std::string stats() const;  // as ParameterClient::stats()

  const std::vector<std::shared_ptr<Shard>>& shards() const { return shards_; }

  // Ends all connections. read() goes on. Any number of times. Error kSystem: a last snapshot could
  // not be written; what it would have had is here only.
  void close();

 private:
  void check() const;
  void let_go();

  const pid_t pid_;
  const Layout layout_;
  std::vector<Range> ranges_;
  std::vector<std::shared_ptr<Shard>> shards_;
  std::vector<std::unique_ptr<ShardService>> services_;
  std::vector<std::unique_ptr<ShardSaver>> savers_;
  std::vector<std::string> addresses_;
  std::mutex closing_;
  bool closed_ = false;  // with closing_
};

}  // namespace penstock::train
