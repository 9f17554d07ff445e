#include "penstock/train/server/hosted_shard.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include "penstock/train/server/epoch.h"
#include "tests/cpp/train/refusals.h"
#include "tests/cpp/train/serving.h"

// Shards of one server in several places, and clients that find them. All gradients are -1 and the
// learning rate is 1, so the weights count the applied pushes.
namespace penstock::train {
namespace {

using testing::message_of;

constexpr size_t kHostedShards = 2;
constexpr char kHostedSecret[] = "a secret of tests";

// A resolver whose answers tests change.
class Directory final : public ShardResolver {
 public:
  size_t shards() const override { return kHostedShards; }
  ShardLocation locate(size_t shard, double) override {
    const std::lock_guard lock(mutex_);
    const auto found = places_.find(shard);
    if (found == places_.end()) throw Error(Code::kClosed, "connect", "nobody knows");
    return found->second;
  }
  void set(size_t shard, const ShardLocation& place) {
    const std::lock_guard lock(mutex_);
    places_[shard] = place;
  }

 private:
  std::mutex mutex_;
  std::map<size_t, ShardLocation> places_;
};

class HostedShardTest : public ::testing::Test {
 protected:
  HostedShardTest() { std::filesystem::create_directories(folder_); }
  ~HostedShardTest() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<HostedShard> make(size_t shard, const ServerMode& mode = {},
                                    const std::string& listen = testing::kLocal) const {
    return std::make_unique<HostedShard>(layout_, optimizer_,
                                         HostedShardOptions{.shards = kHostedShards,
                                                            .shard = shard,
                                                            .server = 7,
                                                            .mode = mode,
                                                            .listen = {listen},
                                                            .secret = kHostedSecret,
                                                            .snapshots = folder_});
  }
  void serve(size_t i, std::unique_ptr<HostedShard> shard) {
    directory_->set(i, {shard->addresses()[0], shard->epoch()});
    shards_[i] = std::move(shard);
  }
  void start(const ServerMode& mode = {}) {
    for (size_t i = 0; i < kHostedShards; ++i) {
      auto shard = make(i, mode);
      shard->begin(std::vector<float>(shard->range().size()), 0);
      serve(i, std::move(shard));
    }
  }
  std::unique_ptr<SnapshotFolder> writer() const {
    return std::make_unique<SnapshotFolder>(folder_, partition(layout_, kHostedShards), optimizer_,
                                            layout_, nullptr, claim_epoch(folder_, kWriterRole));
  }
  void save(SnapshotFolder& folder) const {
    const SnapshotFolder::Id id = folder.next();
    for (const auto& shard : shards_) shard->hold(id.epoch);
    for (const auto& shard : shards_) shard->copy(id.epoch);
    std::vector<SnapshotFolder::Part> parts;
    for (const auto& shard : shards_) parts.push_back(shard->write(id.epoch, id.generation));
    folder.commit(id, parts);
    for (const auto& shard : shards_) shard->set_saved(id.epoch, "");
  }
  // Another process in the place of a shard that was lost with its host.
  void replace(size_t i, const std::string& listen = testing::kLocal) {
    auto shard = make(i, {}, listen);
    EXPECT_TRUE(shard->restore({}));
    serve(i, std::move(shard));
  }
  std::unique_ptr<ParameterClient> connect(double retry_s = 20) const {
    return std::make_unique<ParameterClient>(
        directory_, ClientOptions{.worker_id = 5, .secret = kHostedSecret, .retry_s = retry_s});
  }
  Slab ones() const {
    Slab slab = Slab::make(layout_, Slab::Kind::kShared);
    std::ranges::fill(slab.values(), -1.0f);
    return slab;
  }
  // The first and the last weight: of the first and of the last shard.
  std::pair<float, float> ends(ParameterClient& client) const {
    const Slab weights = Slab::make(layout_);
    client.pull(weights);
    return {weights.values().front(), weights.values()[999]};
  }

  const std::string folder_ = ::testing::TempDir() + "/hosted-" + std::to_string(getpid());
  const Layout layout_{{"w", {1000}}};
  const Optimizer optimizer_ = Optimizer::sgd(1.0);
  const std::shared_ptr<Directory> directory_ = std::make_shared<Directory>();
  std::array<std::unique_ptr<HostedShard>, kHostedShards> shards_;
};

TEST_F(HostedShardTest, a_shard_that_comes_back_elsewhere_is_found_with_the_snapshots_state) {
  start();
  const auto folder = writer();
  const auto client = connect();
  const Slab gradient = ones();
  for (int i = 0; i < 3; ++i) client->push(gradient);
  save(*folder);
  EXPECT_FALSE(shards_[0]->unsaved());
  for (int i = 0; i < 2; ++i) client->push(gradient);
  EXPECT_TRUE(shards_[1]->unsaved());
  const uint64_t before = shards_[1]->epoch();
  shards_[1]->close();
  std::thread coming([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    replace(1);
  });
  client->push(gradient);  // waits for the replacement
  coming.join();
  EXPECT_GT(shards_[1]->epoch(), before);
  EXPECT_EQ(client->sequence(), 6u);
  // What the lost shard had acknowledged after the snapshot is lost with it, and nothing else.
  EXPECT_EQ(ends(*client), std::pair(6.0f, 4.0f));
  // A new client with the worker's id continues where all shards have decided.
  client->close();
  EXPECT_EQ(connect()->sequence(), 6u);
}

TEST_F(HostedShardTest, a_push_reaches_a_shard_that_has_moved_to_another_host) {
  start();
  const auto folder = writer();
  const auto client = connect();
  client->push(ones());
  const auto move = [&](const char* listen) {
    save(*folder);
    shards_[1]->close();
    replace(1, listen);
  };
  // Pushes are prepared for shared memory, which a replacement on another host cannot read.
  move(testing::kTcp);
  client->push(ones());
  move(testing::kLocal);
  client->push(ones());
  move(testing::kTcp);
  const std::vector<int64_t> rows{0, 999};
  const std::vector<float> values(2, -1.0f);
  const GradientPart part{"w", values, true, rows};
  client->push({&part, 1});
  EXPECT_EQ(ends(*client), std::pair(4.0f, 4.0f));
}

TEST_F(HostedShardTest, a_push_in_the_snapshot_is_not_applied_twice_by_a_replacement) {
  start();
  const auto folder = writer();
  const auto client = connect();
  client->push(ones());
  save(*folder);
  // The client ends before it has the answers of all shards: its successor pushes the same again.
  shards_[1]->close();
  replace(1);
  directory_->set(0, {shards_[0]->addresses()[0], shards_[0]->epoch()});
  const auto again = connect();
  EXPECT_EQ(again->sequence(), 1u);
  again->push(ones());
  EXPECT_EQ(ends(*again), std::pair(2.0f, 2.0f));
}

TEST_F(HostedShardTest, an_old_shard_that_wakes_up_is_refused_by_its_epoch) {
  start();
  const auto folder = writer();
  save(*folder);
  const auto client = connect(0.3);
  client->push(ones());
  std::unique_ptr<HostedShard> old = std::move(shards_[1]);
  const ShardLocation old_place{old->addresses()[0], old->epoch()};
  EXPECT_FALSE(old->fence());
  replace(1);
  // The resolver knows the replacement: the client's next connection is to that one.
  client->pull(ones());
  const auto fresh = connect(0.3);
  // A resolver that is out of date: the client has seen the higher epoch, and the shard refuses.
  directory_->set(1, old_place);
  shards_[1]->close();
  const std::string why = message_of(Code::kTimeout, [&] { fresh->pull(ones()); });
  EXPECT_NE(why.find("has replaced this shard with epoch 1"), std::string::npos) << why;
  // A resolver that knows the epoch but not the address: a new client is refused, too.
  directory_->set(1, {old_place.address, old_place.epoch + 1});
  message_of(Code::kTimeout, [&] { connect(0.3); });
  // The old shard notices by itself, and its state is in no snapshot.
  EXPECT_TRUE(old->fence());
  EXPECT_TRUE(old->addresses().empty());
  message_of(Code::kClosed, [&] { old->hold(folder->epoch()); });
}

TEST_F(HostedShardTest, an_old_writer_is_refused_by_the_shards) {
  start();
  const auto old = writer();
  save(*old);
  shards_[0]->hold(old->epoch());
  const auto replacement = writer();
  save(*replacement);
  for (const auto& shard : shards_) {
    const std::string why = message_of(Code::kClosed, [&] { shard->copy(old->epoch()); });
    EXPECT_NE(why.find("epoch 2 writes the snapshots now"), std::string::npos) << why;
    message_of(Code::kClosed, [&] { shard->write(old->epoch(), 9); });
    message_of(Code::kClosed, [&] { shard->set_saved(old->epoch(), "late"); });
  }
}

TEST_F(HostedShardTest, a_step_of_a_snapshot_that_comes_too_late_is_no_part_of_it) {
  start();
  const auto folder = writer();
  shards_[0]->hold(folder->epoch());
  std::this_thread::sleep_for(std::chrono::duration<double>(ShardMemory::Hold::kHoldS + 0.1));
  message_of(Code::kTimeout, [&] { shards_[0]->copy(folder->epoch()); });
  message_of(Code::kTimeout, [&] { shards_[0]->write(folder->epoch(), 1); });
  save(*folder);  // the next one succeeds
}

TEST_F(HostedShardTest, snapshots_during_pushes_are_of_one_moment) {
  start();
  const auto folder = writer();
  std::atomic<bool> stop{false};
  std::thread pushing([&] {
    const auto client = connect();
    const Slab gradient = ones();
    while (!stop.load()) client->push(gradient);
  });
  for (int i = 0; i < 10; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    save(*folder);
    ASSERT_TRUE(folder->find());
    const ShardCheckpoint first = folder->load(0), second = folder->load(1);
    // One push may have been applied by one of the two.
    EXPECT_LE(std::max(first.record.version, second.record.version) -
                  std::min(first.record.version, second.record.version),
              1u);
    for (const ShardCheckpoint* each : {&first, &second}) {
      EXPECT_EQ(each->weights.front(), static_cast<float>(each->record.version));
      EXPECT_EQ(each->weights.back(), static_cast<float>(each->record.version));
      if (each->record.version > 0) {
        EXPECT_EQ(each->record.rows[0].sequence, each->record.version);
      }
    }
  }
  stop.store(true);
  pushing.join();
}

TEST_F(HostedShardTest, a_worker_that_beats_keeps_its_lease_during_a_long_step) {
  constexpr double kLeaseS = 0.3;
  start({.staleness = 1, .lease_s = kLeaseS});
  const auto client = connect();
  EXPECT_EQ(client->lease(), kLeaseS);
  client->pull(ones());
  const auto step = [&](bool beats) {  // of four leases
    for (int i = 0; i < 20; ++i) {
      std::this_thread::sleep_for(std::chrono::duration<double>(kLeaseS / 5));
      if (beats) client->beat();
    }
    return client->push(ones());
  };
  EXPECT_TRUE(step(true).applied);
  EXPECT_TRUE(step(false).lapsed);
}

}  // namespace
}  // namespace penstock::train
