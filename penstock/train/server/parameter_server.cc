#include "penstock/train/server/parameter_server.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <random>
#include <system_error>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/memory/copy.h"
#include "penstock/net/handshake.h"

namespace penstock::train {
namespace {

Error refuse_server(const std::string& why) {
  return Error(Code::kInvalidArgument, "ParameterServer", why);
}

// The address with its port increased by `by`; port 0 and addresses without a port are unchanged.
std::string ports_on(const std::string& address, size_t by) {
  const size_t colon = address.rfind(':');
  if (address.starts_with("unix:")) {
    if (by == 0 || address == "unix:@") return address;
    return address + "-" + std::to_string(by);
  }
  unsigned port = 0;
  const char* first = address.data() + (colon == std::string::npos ? address.size() : colon + 1);
  const auto [end, error] = std::from_chars(first, address.data() + address.size(), port);
  if (error != std::errc() || port == 0) return address;  // resolve() reports invalid addresses
  return address.substr(0, colon + 1) + std::to_string(port + by);
}

}  // namespace

std::vector<std::string> listen_addresses(const ServerOptions& options) {
  if (options.shards == 0) throw refuse_server("0 shards");
  std::vector<std::string> addresses = options.listen;
  if (addresses.empty()) addresses.emplace_back("unix:@");
  if (addresses.size() == 1) {
    for (size_t i = 1; i < options.shards; ++i) addresses.push_back(ports_on(addresses[0], i));
  }
  if (addresses.size() != options.shards) {
    throw refuse_server(std::to_string(options.listen.size()) + " addresses for " +
                        std::to_string(options.shards) + " shards; give one for each, or one");
  }
  return addresses;
}

std::unique_ptr<SnapshotFolder> open_snapshots(const Layout& layout, const Optimizer& optimizer,
                                               const ServerOptions& options) {
  if (!(options.snapshot_s > 0 && options.snapshot_s < 1e9)) {
    throw refuse_server("snapshot_seconds must be above 0");
  }
  if (options.snapshots.empty()) return nullptr;
  return std::make_unique<SnapshotFolder>(options.snapshots, partition(layout, options.shards),
                                          optimizer, layout);
}

std::vector<std::shared_ptr<Shard>> make_shards(const Parameters& parameters,
                                                const Optimizer& optimizer,
                                                const ServerOptions& options,
                                                SnapshotFolder* snapshots) {
  check(options.mode);
  net::Handshake::check(options.secret);
  const auto ranges = partition(parameters.layout(), options.shards);
  const bool restored = snapshots != nullptr && snapshots->find();
  std::vector<std::shared_ptr<Shard>> shards;
  for (size_t i = 0; i < ranges.size(); ++i) {
    auto memory = ShardMemory::make({.floats = ranges[i].size(),
                                     .states = static_cast<uint32_t>(optimizer.state_slabs()),
                                     .copies = options.copies},
                                    optimizer.initial_state());
    shards.push_back(std::make_shared<Shard>(memory, optimizer, options.mode));
    if (restored) {
      shards[i]->restore(snapshots->load(i));
      continue;
    }
    const auto from = parameters.slab().values().subspan(ranges[i].begin, ranges[i].size());
    std::ranges::copy(from, memory->weights(0).begin());
    ShardMemory::Change(*memory).commit(
        0, [&](ShardRecord& next) { next.version = parameters.version(); });
  }
  std::random_device device;
  uint64_t server = shards[0]->memory()->record().server;
  while (server == 0) server = uint64_t{device()} << 32 | device();
  for (const auto& shard : shards) {
    const auto& memory = shard->memory();
    ShardMemory::Change(*memory).commit(memory->current().copy,
                                        [&](ShardRecord& next) { next.server = server; });
  }
  return shards;
}

ParameterServer::ParameterServer(const Parameters& parameters, const Optimizer& optimizer,
                                 const ServerOptions& options)
    : pid_(getpid()), layout_(parameters.layout()), ranges_(partition(layout_, options.shards)) {
  auto snapshots = open_snapshots(layout_, optimizer, options);
  shards_ = make_shards(parameters, optimizer, options, snapshots.get());
  if (snapshots) damaged_snapshots_ = snapshots->damaged();
  const std::vector<std::string> listen = listen_addresses(options);
  for (size_t i = 0; i < shards_.size(); ++i) {
    const uint64_t server = shards_[i]->memory()->record().server;
    services_.push_back(std::make_unique<ShardService>(
        shards_[i], ShardPlace{layout_, ranges_[i], server, snapshots ? snapshots->epoch() : 0},
        options.mode, std::vector<std::string>{listen[i]}, options.secret, options.encrypt));
    addresses_.push_back(services_[i]->addresses()[0]);
  }
  if (!snapshots) return;
  // Save immediately: workers then recognise a server that replaces this one, and a folder without
  // write permission is reported now. Not before the addresses exist: a server that never served
  // leaves no files.
  std::vector<std::shared_ptr<ShardMemory>> memories;
  for (const auto& shard : shards_) memories.push_back(shard->memory());
  saver_ = std::make_unique<SnapshotSaver>(std::move(memories), std::move(snapshots),
                                           options.snapshot_s);
}

ParameterServer::~ParameterServer() {
  try {
    close();
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): close() reports it
  }
}

// In a forked child the locks and conditions may be held by threads of the parent: locking or
// destroying them could wait for ever. So these objects are leaked.
void ParameterServer::leak_inherited() { (void)new std::vector<std::shared_ptr<Shard>>(shards_); }

void ParameterServer::check() const {
  if (getpid() == pid_) return;
  throw refuse_server("this server is the parent process's; connect to it in the forked child");
}

void ParameterServer::close() {
  if (getpid() != pid_) return leak_inherited();
  const std::lock_guard lock(closing_);
  if (closed_) return;
  closed_ = true;
  services_.clear();
  if (saver_) saver_->end();
}

std::vector<uint64_t> ParameterServer::read(const Slab& into) const {
  check();
  layout_.require_equal(into.layout(), "pull", "this slab");
  std::vector<uint64_t> versions;
  for (size_t i = 0; i < shards_.size(); ++i) {
    versions.push_back(
        shards_[i]->read(into.values().subspan(ranges_[i].begin, ranges_[i].size())));
  }
  return versions;
}

std::string ParameterServer::saving_failed() const {
  return shards_.front()->memory()->saving_failed();
}

std::string ParameterServer::stats() const {
  check();
  std::string all = "[";
  for (const auto& shard : shards_) {
    if (all.size() > 1) all += ',';
    all += shard->stats();
  }
  return all + "]";
}

}  // namespace penstock::train
