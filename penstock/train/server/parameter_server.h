#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "penstock/train/server/shard.h"
#include "penstock/train/server/shard_service.h"
#include "penstock/train/server/snapshot_folder.h"
#include "penstock/train/server/snapshot_saver.h"
#include "penstock/train/slab.h"

namespace penstock::train {

struct ServerOptions {
  size_t shards = 1;
  ServerMode mode = {};
  // One address for each shard, or one for all: its port, if not 0, is the first shard's, and the
  // others use the following ports. Empty: a free name on this host.
  std::vector<std::string> listen = {};
  std::string secret = {};                     // see net::LinkOptions; required for other hosts
  std::optional<bool> encrypt = std::nullopt;  // whether TCP is encrypted; see net::LinkOptions
  // A folder for snapshots, which one server at a time uses. If it has snapshots, the server
  // continues from the newest one that is complete. Empty: no snapshots.
  std::string snapshots = {};
  double snapshot_s = 60;  // between two snapshots
  uint32_t copies = 1;     // copies of weights and state; 2: see ShardMemory
};

// The address of each shard. Error kInvalidArgument.
std::vector<std::string> listen_addresses(const ServerOptions& options);

// The folder of the options, locked; nullptr: none. Errors of SnapshotFolder.
std::unique_ptr<SnapshotFolder> open_snapshots(const Layout& layout, const Optimizer& optimizer,
                                               const ServerOptions& options);

// Makes the shards, with these weights or those of the snapshots. Errors as ParameterServer.
std::vector<std::shared_ptr<Shard>> make_shards(const Parameters& parameters,
                                                const Optimizer& optimizer,
                                                const ServerOptions& options,
                                                SnapshotFolder* snapshots);

// A parameter server whose shards are threads of this process. The weights are copied from the
// parameters and then live in the shards. docs/training.md, section 8.
//
// Threads: any. A forked child does not serve: there close() does nothing, and read() and stats()
// throw kInvalidArgument.
class ParameterServer {
 public:
  // Errors: kInvalidArgument, kOutOfMemory, kSystem; kDataLoss: every snapshot is damaged.
  ParameterServer(const Parameters& parameters, const Optimizer& optimizer,
                  const ServerOptions& options);
  ~ParameterServer();
  ParameterServer(const ParameterServer&) = delete;
  ParameterServer& operator=(const ParameterServer&) = delete;

  const Layout& layout() const { return layout_; }
  const std::vector<std::string>& addresses() const { return addresses_; }  // for connect()

  // One line for each damaged snapshot that was passed over for an older one.
  const std::vector<std::string>& damaged_snapshots() const { return damaged_snapshots_; }

  // Copies the current weights. Returns each shard's version. Error kInvalidArgument: layout.
  std::vector<uint64_t> read(const Slab& into) const;
  std::string stats() const;  // as ParameterClient::stats()
  // Why the last snapshot could not be written; empty: it was written, or there is none.
  std::string saving_failed() const;

  const std::vector<std::shared_ptr<Shard>>& shards() const { return shards_; }

  // Ends all connections; read() still works. Idempotent. Error kSystem: a last snapshot could not
  // be written; that state exists only in this object.
  void close();

 private:
  void check() const;
  void leak_inherited();

  const pid_t pid_;
  const Layout layout_;
  std::vector<Range> ranges_;
  std::vector<std::shared_ptr<Shard>> shards_;
  std::vector<std::unique_ptr<ShardService>> services_;
  std::vector<std::string> damaged_snapshots_;
  std::unique_ptr<SnapshotSaver> saver_;
  std::vector<std::string> addresses_;
  std::mutex closing_;
  bool closed_ = false;  // guarded by closing_
};

}  // namespace penstock::train
