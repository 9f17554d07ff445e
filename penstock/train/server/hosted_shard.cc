#include "penstock/train/server/hosted_shard.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/train/server/epoch.h"

namespace penstock::train {
namespace {

constexpr double kHoldChangeS = 1;  // for a change that has begun before hold()

Error refuse_shard(const std::string& why) {
  return Error(Code::kInvalidArgument, "ParameterServer", why);
}

Range range_of(const Layout& layout, const HostedShardOptions& options) {
  if (options.shard >= options.shards) throw refuse_shard("no such shard");
  if (options.server == 0) throw refuse_shard("a server's id must not be 0");
  return partition(layout, options.shards)[options.shard];
}

}  // namespace

HostedShard::HostedShard(Layout layout, const Optimizer& optimizer, HostedShardOptions options)
    : pid_(getpid()),
      layout_(std::move(layout)),
      optimizer_(optimizer),
      options_(std::move(options)),
      range_(range_of(layout_, options_)),
      epoch_(options_.snapshots.empty()
                 ? 0
                 : claim_epoch(options_.snapshots, shard_role(options_.shard))),
      memory_(ShardMemory::make({.floats = range_.size(),
                                 .states = static_cast<uint32_t>(optimizer.state_slabs()),
                                 .copies = 1},
                                optimizer.initial_state())),
      shard_(std::make_shared<Shard>(memory_, optimizer_, options_.mode)) {}

HostedShard::~HostedShard() { close(); }

void HostedShard::serve() {
  service_ = std::make_unique<ShardService>(
      shard_, ShardPlace{layout_, range_, memory_->record().server, epoch_}, options_.mode,
      options_.listen, options_.secret, options_.encrypt);
}

void HostedShard::begin(std::span<const float> weights, uint64_t version) {
  const std::lock_guard lock(mutex_);
  if (service_ || closed_) throw refuse_shard("this shard has begun");
  if (weights.size() != range_.size()) throw refuse_shard("weights of another size");
  std::ranges::copy(weights, memory_->weights(0).begin());
  ShardMemory::Change(*memory_).commit(0, [&](ShardRecord& next) {
    next.version = version;
    next.server = options_.server;
  });
  serve();
}

bool HostedShard::restore(std::optional<SnapshotFolder::Id> id) {
  const std::lock_guard lock(mutex_);
  if (service_ || closed_) throw refuse_shard("this shard has begun");
  SnapshotFolder folder(options_.snapshots, partition(layout_, options_.shards), optimizer_,
                        layout_, nullptr, 0);
  if (id) {
    folder.choose(*id);
  } else if (!folder.find(options_.shard)) {
    return false;
  }
  damaged_ = folder.damaged();
  shard_->restore(folder.load(options_.shard));
  memory_->set_saved({memory_->record().version, memory_->commits()});
  serve();
  return true;
}

std::vector<std::string> HostedShard::addresses() const {
  const std::lock_guard lock(mutex_);
  return service_ ? service_->addresses() : std::vector<std::string>();
}

bool HostedShard::fence() {
  if (epoch_ == 0 || newest_epoch(options_.snapshots, shard_role(options_.shard)) <= epoch_) {
    return false;
  }
  close();
  return true;
}

// ---- snapshots ----------------------------------------------------------------------------------

void HostedShard::check_writer(uint64_t writer) {
  if (writer < writer_) {
    throw Error(Code::kClosed, "snapshot",
                "epoch " + std::to_string(writer_) +
                    " writes the snapshots now, instead of epoch " + std::to_string(writer));
  }
  writer_ = writer;
  if (!service_) throw Error(Code::kClosed, "snapshot", "this shard does not serve");
}

void HostedShard::hold(uint64_t writer) {
  const std::lock_guard lock(mutex_);
  check_writer(writer);
  copy_.reset();
  hold_.reset();
  hold_ = std::make_unique<ShardMemory::Hold>(*memory_);
  if (hold_->wait(Deadline(kHoldChangeS)) && hold_->renew()) return;
  hold_.reset();
  throw Error(Code::kTimeout, "snapshot", "an update took too long; the next snapshot may succeed");
}

uint64_t HostedShard::copy(uint64_t writer) {
  const std::lock_guard lock(mutex_);
  check_writer(writer);
  const auto hold = std::move(hold_);
  const auto late = [] {
    return Error(Code::kTimeout, "snapshot",
                 "the copy came too late, or took too long; the next snapshot may succeed");
  };
  if (!hold) throw late();
  const auto renew = [&] {
    if (!hold->renew()) throw late();
  };
  renew();
  copy_ = memory_->checkpoint(renew);
  if (!hold->renew()) {
    copy_.reset();
    throw late();
  }
  return copy_->commits;
}

SnapshotFolder::Part HostedShard::write(uint64_t writer, uint64_t generation) {
  std::shared_ptr<const ShardCheckpoint> state;
  {
    const std::lock_guard lock(mutex_);
    check_writer(writer);
    if (!copy_) throw Error(Code::kTimeout, "snapshot", "there is no copy to write");
    state = copy_;
  }
  const SnapshotFolder folder(options_.snapshots, partition(layout_, options_.shards), optimizer_,
                              layout_, nullptr, writer);
  SnapshotFolder::Part part =
      folder.write(options_.shard, {.epoch = writer, .generation = generation}, *state);
  part.epoch = epoch_;
  return part;
}

void HostedShard::set_saved(uint64_t writer, const std::string& failure) {
  const std::lock_guard lock(mutex_);
  check_writer(writer);
  hold_.reset();
  if (failure.empty() && copy_) memory_->set_saved({copy_->record.version, copy_->commits});
  memory_->set_saving_failed(failure);
  copy_.reset();
}

uint64_t HostedShard::read(std::span<float> into) const {
  {
    const std::lock_guard lock(mutex_);
    if (!service_) throw Error(Code::kClosed, "pull", "this shard does not serve");
  }
  return shard_->read(into);
}

bool HostedShard::unsaved() const { return memory_->commits() != memory_->saved().commits; }

std::string HostedShard::stats() const {
  auto stats = nlohmann::ordered_json::parse(shard_->stats());
  stats["epoch"] = epoch_;
  return stats.dump();
}

void HostedShard::close() {
  if (getpid() != pid_) {  // locks and the hold are the parent's: the objects are leaked
    (void)new std::shared_ptr<Shard>(shard_);
    (void)service_.release();
    (void)hold_.release();
    return;
  }
  std::unique_ptr<ShardService> service;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    hold_.reset();
    service = std::move(service_);
  }
  service.reset();
}

}  // namespace penstock::train
