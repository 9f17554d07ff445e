#include "penstock/train/server/parameter_server.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <random>
#include <system_error>

#include "penstock/base/error.h"
#include "penstock/memory/copy.h"
#include "penstock/net/handshake.h"

namespace penstock::train {
namespace {

constexpr const char* kSnapshotEnd = ".safetensors";

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

bool file_exists(const std::string& path) {
  std::error_code unknown;
  return std::filesystem::exists(path, unknown) || unknown;  // opening it reports the error
}

// If there are no snapshots of these shards, requires that the folder has none of other shards.
void require_no_others(const std::string& folder, size_t shards) {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("shard-") || !name.ends_with(kSnapshotEnd)) continue;
    throw refuse_server(folder + " has snapshots of a server with another number of shards (" +
                        name + "), this server has " + std::to_string(shards) +
                        ": give the same number of shards, or another folder");
  }
}

// An interrupted start leaves files of some shards, which no worker has used.
void require_unused(const ShardRecord& record, const std::string& missing) {
  const bool used =
      record.step > 0 || record.skipped > 0 ||
      std::ranges::any_of(record.rows, [](const auto& row) { return row.worker > 0; });
  if (!used) return;
  throw refuse_server("there are snapshots of some shards only; " + missing +
                      " is missing. Restore it, or start with an empty folder");
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

std::vector<std::shared_ptr<Shard>> make_shards(const Parameters& parameters,
                                                const Optimizer& optimizer,
                                                const ServerOptions& options) {
  check(options.mode);
  net::Handshake::check(options.secret, options.encrypt);
  if (!(options.snapshot_s > 0 && options.snapshot_s < 1e9)) {
    throw refuse_server("snapshot_seconds must be above 0");
  }
  const Layout& layout = parameters.layout();
  const auto ranges = partition(layout, options.shards);
  std::vector<std::shared_ptr<Shard>> shards;
  uint64_t server = 0;
  std::vector<ShardFile> files;  // existing files
  std::string missing;
  for (size_t i = 0; i < ranges.size() && !options.snapshots.empty(); ++i) {
    ShardFile file = file_of(options.snapshots, i, ranges, optimizer, layout);
    if (file_exists(file.path)) {
      files.push_back(std::move(file));
    } else {
      missing = file.path;
    }
  }
  if (files.empty() && !options.snapshots.empty()) {
    require_no_others(options.snapshots, ranges.size());
  }
  for (size_t i = 0; i < ranges.size(); ++i) {
    const auto make = [&] {
      auto memory = ShardMemory::make({.floats = ranges[i].size(),
                                       .states = static_cast<uint32_t>(optimizer.state_slabs()),
                                       .copies = options.copies},
                                      optimizer.initial_state());
      const auto from = parameters.slab().values().subspan(ranges[i].begin, ranges[i].size());
      std::ranges::copy(from, memory->weights(0).begin());
      memory->commit(0, [&](ShardRecord& next) { next.version = parameters.version(); });
      return std::make_shared<Shard>(memory, optimizer, options.mode);
    };
    shards.push_back(make());
    const auto file = std::ranges::find(files, ranges[i].begin,
                                        [](const ShardFile& each) { return each.range.begin; });
    if (file == files.end()) continue;
    load(*shards[i], *file);
    const ShardRecord& record = shards[i]->memory()->record();
    if (missing.empty()) {
      server = record.server;
    } else {
      require_unused(record, missing);
      shards[i] = make();
    }
  }
  std::random_device device;
  while (server == 0) server = uint64_t{device()} << 32 | device();
  for (const auto& shard : shards) {
    const auto& memory = shard->memory();
    memory->commit(memory->current().copy, [&](ShardRecord& next) { next.server = server; });
  }
  return shards;
}

ParameterServer::ParameterServer(const Parameters& parameters, const Optimizer& optimizer,
                                 const ServerOptions& options)
    : pid_(getpid()),
      layout_(parameters.layout()),
      ranges_(partition(layout_, options.shards)),
      shards_(make_shards(parameters, optimizer, options)) {
  const std::vector<std::string> listen = listen_addresses(options);
  for (size_t i = 0; i < shards_.size(); ++i) {
    const uint64_t server = shards_[i]->memory()->record().server;
    services_.push_back(std::make_unique<ShardService>(
        shards_[i], ShardPlace{layout_, ranges_[i], server}, options.mode,
        std::vector<std::string>{listen[i]}, options.secret, options.encrypt));
    addresses_.push_back(services_[i]->addresses()[0]);
  }
  if (options.snapshots.empty()) return;
  // Save immediately: workers then recognise a server that replaces this one, and a folder without
  // write permission is reported now. Not before the addresses exist: a server that never served
  // leaves no files.
  for (size_t i = 0; i < options.shards; ++i) {
    const ShardFile file = file_of(options.snapshots, i, ranges_, optimizer, layout_);
    save(*shards_[i], file);
    savers_.push_back(std::make_unique<ShardSaver>(shards_[i], file, options.snapshot_s));
  }
}

ParameterServer::~ParameterServer() {
  try {
    close();
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): close() reports it
  }
}

// In a forked child the locks and conditions may be held by threads of the parent: locking or
// destroying them could wait for ever. So these objects are leaked.
void ParameterServer::leak_inherited() {
  (void)new std::vector<std::unique_ptr<ShardSaver>>(std::move(savers_));
  (void)new std::vector<std::shared_ptr<Shard>>(shards_);
}

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
  std::vector<std::string> failures;
  for (const auto& saver : savers_) {
    const std::string failure = saver->end();
    if (!failure.empty()) failures.push_back(failure);
  }
  savers_.clear();
  if (!failures.empty()) throw unsaved(failures);
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
