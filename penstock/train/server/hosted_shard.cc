#include "penstock/train/server/hosted_shard.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
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
  if (options.replicas < 1 || options.replicas > 2) throw refuse_shard("replicas is 1 or 2");
  if (options.replicas == 2 && options.snapshots.empty()) {
    throw refuse_shard(
        "replicas=2 needs a folder for snapshots, which all hosts see: it says which replica "
        "leads");
  }
  check(options.replica);
  return partition(layout, options.shards)[options.shard];
}

uint64_t random_id() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) | 1;
}

}  // namespace

HostedShard::HostedShard(Layout layout, const Optimizer& optimizer, HostedShardOptions options)
    : pid_(getpid()),
      layout_(std::move(layout)),
      optimizer_(optimizer),
      options_(std::move(options)),
      range_(range_of(layout_, options_)),
      id_(random_id()),
      epoch_(options_.snapshots.empty() || options_.replicas == 2
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
      shard_, ShardPlace{layout_, range_, memory_->record().server, epoch_, replicas_},
      options_.mode, options_.listen, options_.secret, options_.encrypt);
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
  lead_anew();
  serve();
}

bool HostedShard::restore(std::optional<SnapshotFolder::Id> id) {
  const std::lock_guard lock(mutex_);
  if (!restore_state(id)) return false;
  lead_anew();
  serve();
  return true;
}

// REQUIRED: mutex_ is held.
bool HostedShard::restore_state(std::optional<SnapshotFolder::Id> id) {
  if (service_ || closed_) throw refuse_shard("this shard has begun");
  SnapshotFolder folder(options_.snapshots, partition(layout_, options_.shards), optimizer_,
                        layout_, nullptr, 0);
  if (id) {
    folder.choose(*id);
  } else if (!folder.find(options_.shard)) {
    return false;
  }
  damaged_ = folder.damaged();
  memory_->load(folder.load(options_.shard));
  shard_ = std::make_shared<Shard>(memory_, optimizer_, options_.mode);
  memory_->set_saved({memory_->record().version, memory_->commits()});
  return true;
}

// ---- two replicas -------------------------------------------------------------------------------

uint64_t HostedShard::epoch() const {
  const std::lock_guard lock(mutex_);
  return replicas_ ? replicas_->epoch() : epoch_;
}

Assignment HostedShard::assignment() const {
  return newest_assignment(options_.snapshots, shard_role(options_.shard));
}

// Makes an assignment with this process as leader. False: another was faster. REQUIRED: mutex_ is
// held.
bool HostedShard::lead(uint64_t epoch) {
  const Assignment mine{.epoch = epoch, .server = options_.server, .leader = id_};
  if (!assign(options_.snapshots, shard_role(options_.shard), mine)) return false;
  replicas_ = std::make_shared<ReplicaLog>(options_.replica, options_.snapshots,
                                           shard_role(options_.shard), mine);
  shard_->replicate_to(replicas_);
  return true;
}

// As leader, whatever came before. REQUIRED: mutex_ is held.
void HostedShard::lead_anew() {
  if (options_.replicas == 1) return;
  while (!lead(assignment().epoch + 1)) {
  }
}

HostedShard::Attended HostedShard::attend(const Assignment& seen, const Other& other) {
  std::shared_ptr<ShardFollower> follower;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) throw Error(Code::kClosed, "ParameterServer", "this shard was closed");
    if (service_) return Attended::kLeads;
    if (seen.server != options_.server) {
      why_not_ = "it has not begun";
      return Attended::kWaits;
    }
    if (seen.leader == id_) {  // a former call made the assignment, and failed after that
      if (!replicas_) return serve_after(seen);
      serve();
      return Attended::kLeads;
    }
    const bool has_state = seen.follower == id_ && follower_ && follower_->has_state();
    if (other.id != seen.leader && !has_state) {
      if (other.id == seen.follower) {
        why_not_ = "the other replica takes the leader's place";
        return Attended::kOtherFollows;
      }
      if (!restore_state({})) {
        throw Error(Code::kNotFound, "ParameterServer",
                    options_.snapshots + " has no snapshot; the shard's state is lost");
      }
      return serve_after(seen);
    }
    if (other.id != seen.leader) return take_over(seen);
    if (other.address.empty()) {
      why_not_ = "the leader does not serve";
      return Attended::kWaits;
    }
    if (!follower_) {
      follower_ = std::make_shared<ShardFollower>(
          memory_, optimizer_, options_.mode.compensation,
          ShardFollower::Options{.follower = id_,
                                 .server = options_.server,
                                 .secret = options_.secret,
                                 .encrypt = options_.encrypt,
                                 .silence_s = options_.replica.silence_s});
    }
    follower = follower_;
    leader_ = seen.leader;
    why_not_ = "it follows";
  }
  const std::string lost = follower->run(other.address);
  {
    const std::lock_guard lock(mutex_);
    why_not_ = lost;
    follower->resume();
    leader_ = 0;
  }
  const Assignment now = assignment();
  const std::lock_guard lock(mutex_);
  if (closed_) throw Error(Code::kClosed, "ParameterServer", "this shard was closed");
  if (now.server != options_.server || now.follower != id_ || !follower->has_state()) {
    return Attended::kWaits;
  }
  return take_over(now);
}

// The memory has all that was acknowledged. REQUIRED: mutex_ is held.
HostedShard::Attended HostedShard::take_over(const Assignment& before) {
  shard_ = std::make_shared<Shard>(memory_, optimizer_, options_.mode);
  return serve_after(before);
}

// REQUIRED: mutex_ is held.
HostedShard::Attended HostedShard::serve_after(const Assignment& before) {
  if (!lead(before.epoch + 1)) return Attended::kWaits;
  serve();
  return Attended::kLeads;
}

void HostedShard::lose_leader(uint64_t leader) {
  const std::lock_guard lock(mutex_);
  if (follower_ && leader_ == leader) follower_->stop();
}

std::string HostedShard::why_not() const {
  const std::lock_guard lock(mutex_);
  return why_not_;
}

std::vector<std::string> HostedShard::addresses() const {
  const std::lock_guard lock(mutex_);
  return service_ ? service_->addresses() : std::vector<std::string>();
}

bool HostedShard::fence() {
  if (options_.replicas == 2) {
    uint64_t mine = 0;
    {
      const std::lock_guard lock(mutex_);
      if (!service_) return false;
      mine = replicas_->epoch();
    }
    const Assignment now = assignment();
    if (now.epoch < mine) return false;  // not the newest
    if (now.leader == id_ && now.server == options_.server) return false;
    close();
    return true;
  }
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
  part.epoch = epoch();
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

uint32_t HostedShard::replicas() const {
  const std::lock_guard lock(mutex_);
  return replicas_ ? replicas_->replicas() : 1;
}

bool HostedShard::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

bool HostedShard::unsaved() const { return memory_->commits() != memory_->saved().commits; }

std::string HostedShard::stats() const {
  auto stats = nlohmann::ordered_json::parse(shard_->stats());
  stats["epoch"] = epoch();
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
    if (follower_) follower_->stop();
    hold_.reset();
    service = std::move(service_);
  }
  service.reset();
}

}  // namespace penstock::train
