#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <limits>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "penstock/train/server/hosted_shard.h"
#include "tests/cpp/train/refusals.h"
#include "tests/cpp/train/serving.h"

// A shard with two replicas, which lose each other, and a client that finds the leader. All
// gradients are -1 and the learning rate is 1, so the weights count the applied pushes.
namespace penstock::train {
namespace {

using testing::message_of;
using namespace std::chrono_literals;

constexpr size_t kPlaces = 2;
constexpr char kReplicaSecret[] = "a secret of tests";
constexpr ReplicaOptions kPatient{.timeout_s = std::numeric_limits<double>::infinity(),
                                  .silence_s = 2};

void wait_until(const std::function<bool()>& done) {
  const Deadline end(20);
  while (!done() && !end.passed()) std::this_thread::sleep_for(1ms);
  ASSERT_TRUE(done());
}

// Two places for the processes of one shard, and the resolver of its clients. A lost process's
// connections end, and its state is gone.
class Places final : public ShardResolver {
 public:
  struct Setup {
    ServerMode mode = {};
    ReplicaOptions replica = kPatient;
    Optimizer optimizer = Optimizer::sgd(1.0);
    std::string listen = testing::kTcp;
  };
  explicit Places(Setup setup) : setup_(std::move(setup)) {
    std::filesystem::create_directories(folder_);
    make(0)->begin(std::vector<float>(layout_.floats()), 0);
    make(1);
    for (size_t i = 0; i < kPlaces; ++i) attending_[i] = std::thread([this, i] { attend(i); });
  }
  ~Places() override {
    stopping_.store(true);
    for (size_t i = 0; i < kPlaces; ++i) at(i)->close();
    for (std::thread& thread : attending_) thread.join();
    std::filesystem::remove_all(folder_);
  }

  size_t shards() const override { return 1; }
  ShardLocation locate(size_t, double) override {
    ShardLocation best;
    for (size_t i = 0; i < kPlaces; ++i) {
      const auto shard = at(i);
      const auto addresses = shard->addresses();
      if (!addresses.empty() && shard->epoch() >= best.epoch) best = {addresses[0], shard->epoch()};
    }
    if (best.address.empty()) throw Error(Code::kClosed, "connect", "no replica leads");
    return best;
  }

  std::shared_ptr<HostedShard> at(size_t i) const {
    const std::lock_guard lock(mutex_);
    return shards_[i];
  }
  // A new process in the place of one that is lost; `keeps`: the old one runs on.
  std::shared_ptr<HostedShard> replace(size_t i, bool keeps = false) {
    const auto old = at(i);
    make(i);
    if (!keeps) old->close();
    return old;
  }
  size_t leader() const {
    size_t best = kPlaces;
    for (size_t i = 0; i < kPlaces; ++i) {
      if (at(i)->addresses().empty()) continue;
      if (best == kPlaces || at(i)->epoch() > at(best)->epoch()) best = i;
    }
    return best;
  }
  bool complete() const { return leader() < kPlaces && at(leader())->replicas() == 2; }
  void wait_complete() const {
    wait_until([this] { return complete(); });
  }
  // While paused, no process begins to follow or to lead.
  void pause(size_t i, bool paused) { paused_[i].store(paused); }

  std::unique_ptr<ParameterClient> connect(double retry_s = 20, uint64_t worker = 5,
                                           Encoding encoding = Encoding::kFloat32) {
    return std::make_unique<ParameterClient>(
        std::shared_ptr<ShardResolver>(std::shared_ptr<void>(), this),
        ClientOptions{.worker_id = worker,
                      .secret = kReplicaSecret,
                      .retry_s = retry_s,
                      .encoding = encoding});
  }
  Slab ones() const {
    Slab slab = Slab::make(layout_, Slab::Kind::kShared);
    std::ranges::fill(slab.values(), -1.0f);
    return slab;
  }
  // The weights' value, which must be the same for all.
  float count(ParameterClient& client) const {
    const Slab weights = Slab::make(layout_);
    client.pull(weights);
    for (const float each : weights.values()) EXPECT_EQ(each, weights.values()[0]);
    return weights.values()[0];
  }
  std::vector<float> read() const {
    std::vector<float> weights(layout_.floats());
    at(leader())->read(weights);
    return weights;
  }
  const std::string& folder() const { return folder_; }
  const Layout& layout() const { return layout_; }

 private:
  std::shared_ptr<HostedShard> make(size_t i) {
    auto made = std::make_shared<HostedShard>(layout_, setup_.optimizer,
                                              HostedShardOptions{.server = 7,
                                                                 .mode = setup_.mode,
                                                                 .listen = {setup_.listen},
                                                                 .secret = kReplicaSecret,
                                                                 .snapshots = folder_,
                                                                 .replicas = 2,
                                                                 .replica = setup_.replica});
    const std::lock_guard lock(mutex_);
    shards_[i] = made;
    return made;
  }
  void attend(size_t i) {
    while (!stopping_.load()) {
      std::this_thread::sleep_for(2ms);
      if (paused_[i].load()) continue;
      const auto mine = at(i);
      try {
        if (mine->fence() && mine == at(i)) make(i);
        const Assignment seen = mine->assignment();
        const auto other = at(1 - i);
        const auto addresses = other->addresses();
        const auto attended =
            mine->attend(seen, {other->id(), addresses.empty() ? "" : addresses[0]});
        if (attended == HostedShard::Attended::kOtherFollows) other->lose_leader(seen.leader);
      } catch (const Error&) {  // closed by the test
      }
    }
  }

  const std::string folder_ = ::testing::TempDir() + "/replicas-" + std::to_string(getpid());
  const Layout layout_{{"w", {1000}}};
  const Setup setup_;
  mutable std::mutex mutex_;
  std::array<std::shared_ptr<HostedShard>, kPlaces> shards_;
  std::array<std::thread, kPlaces> attending_;
  std::array<std::atomic<bool>, kPlaces> paused_{};
  std::atomic<bool> stopping_{false};
};

TEST(ReplicasTest, a_lost_leader_takes_no_acknowledged_push_with_it) {
  Places places({});
  const auto client = places.connect();
  for (int i = 0; i < 5; ++i) client->push(places.ones());
  EXPECT_EQ(places.leader(), 0u);
  const uint64_t epoch = places.at(0)->epoch();
  places.replace(0);
  for (int i = 0; i < 5; ++i) client->push(places.ones());
  EXPECT_EQ(places.leader(), 1u);
  EXPECT_GT(places.at(1)->epoch(), epoch);
  EXPECT_EQ(places.count(*client), 10);
  // A new client of this worker finds its number at the new leader.
  client->close();
  EXPECT_EQ(places.connect()->sequence(), 10u);
}

TEST(ReplicasTest, a_lost_follower_is_replaced_and_pushes_wait_for_it) {
  Places places({});
  const auto client = places.connect();
  client->push(places.ones());
  places.pause(1, true);
  places.replace(1);
  std::atomic<bool> acknowledged{false};
  std::thread pushing([&] {
    client->push(places.ones());
    acknowledged.store(true);
  });
  std::this_thread::sleep_for(200ms);
  EXPECT_FALSE(acknowledged.load());
  places.pause(1, false);
  pushing.join();
  EXPECT_TRUE(places.complete());
  places.replace(0);  // the replacement has both pushes
  EXPECT_EQ(places.count(*client), 2);
}

TEST(ReplicasTest, without_a_replacement_the_leader_goes_on_alone_after_the_timeout) {
  Places places({.replica = {.timeout_s = 0.2, .silence_s = 2}});
  const auto client = places.connect();
  places.wait_complete();
  client->push(places.ones());
  places.pause(1, true);
  places.replace(1);
  const auto begin = std::chrono::steady_clock::now();
  client->push(places.ones());
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 150ms);
  EXPECT_EQ(places.at(0)->replicas(), 1u);
  EXPECT_EQ(places.at(0)->assignment().follower, 0u);
  for (int i = 0; i < 10; ++i) client->push(places.ones());
  places.pause(1, false);  // a late replacement gets all of that
  places.wait_complete();
  places.replace(0);
  EXPECT_EQ(places.count(*client), 12);
}

// An error of the folder may hide that the assignment was made: then the follower may lead.
TEST(ReplicasTest, while_an_assignment_is_in_doubt_pushes_wait) {
  Places places({.replica = {.timeout_s = 0.2, .silence_s = 2}});
  places.pause(1, true);
  places.replace(1);
  const auto client = places.connect();
  const auto other = places.connect(20, 6);
  client->push(places.ones());
  const auto leader = places.at(0);
  EXPECT_EQ(leader->replicas(), 1u);
  // A snapshot holds a push, which locks the shard, so its state is copied after the folder is
  // lost.
  leader->hold(1);
  std::thread holding([&] { client->push(places.ones()); });
  std::vector<std::future<void>> asked;
  wait_until([&] {
    asked.push_back(std::async(std::launch::async, [&] { leader->stats(); }));
    return asked.back().wait_for(100ms) == std::future_status::timeout;
  });
  places.pause(1, false);
  wait_until([&] { return places.at(1)->why_not() == "it follows"; });
  const std::string away = places.folder() + "-away";
  std::filesystem::rename(places.folder(), away);
  leader->set_saved(1, "");
  wait_until([&] { return places.at(1)->why_not() != "it follows"; });
  std::atomic<bool> acknowledged{false};
  std::thread pushing([&] {
    other->push(places.ones());
    acknowledged.store(true);
  });
  std::this_thread::sleep_for(300ms);
  EXPECT_FALSE(acknowledged.load());
  std::filesystem::rename(away, places.folder());
  holding.join();
  pushing.join();
  places.wait_complete();
  EXPECT_EQ(places.count(*client), 3);
}

TEST(ReplicasTest, a_folder_that_comes_and_goes_never_has_no_assignment) {
  const std::string folder = ::testing::TempDir() + "/comes-" + std::to_string(getpid());
  const std::string away = folder + "-away";
  std::filesystem::create_directories(folder);
  ASSERT_TRUE(assign(folder, "shard-0", {.epoch = 1, .server = 7, .leader = 3}));
  std::atomic<bool> stopping{false};
  std::thread moving([&] {
    while (!stopping.load()) {
      std::filesystem::rename(folder, away);
      std::filesystem::rename(away, folder);
    }
  });
  uint64_t found = 0, errors = 0;
  const Deadline end(20);
  while ((found < 1000 || errors < 1000) && !end.passed()) {
    try {
      const Assignment newest = newest_assignment(folder, "shard-0");
      EXPECT_EQ(newest, (Assignment{.epoch = 1, .server = 7, .leader = 3}));
      ++found;
    } catch (const Error& error) {
      EXPECT_NE(error.code(), Code::kDataLoss) << error.what();
      ++errors;
    }
  }
  stopping.store(true);
  moving.join();
  EXPECT_GE(found, 1000u);
  EXPECT_GE(errors, 1000u);
  std::filesystem::remove_all(folder);
}

TEST(ReplicasTest, a_leader_goes_on_when_the_folder_shows_no_newer_epoch) {
  Places places({});
  places.wait_complete();
  const auto leader = places.at(0);
  const uint64_t epoch = leader->epoch();
  for (const auto& entry : std::filesystem::directory_iterator(places.folder())) {
    std::filesystem::remove(entry.path());
  }
  EXPECT_FALSE(leader->fence());
  const auto client = places.connect();
  client->push(places.ones());
  EXPECT_EQ(places.count(*client), 1);
  EXPECT_EQ(leader->epoch(), epoch);
}

TEST(ReplicasTest, drafts_of_killed_processes_are_removed) {
  const std::string folder = ::testing::TempDir() + "/drafts-" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  for (const char* name : {"/.epoch-1", "/.epoch-2"}) std::ofstream(folder + name) << "{";
  std::filesystem::last_write_time(folder + "/.epoch-1",
                                   std::filesystem::file_time_type::clock::now() - 2h);
  EXPECT_TRUE(assign(folder, "shard-0", {.epoch = 1, .server = 7, .leader = 3}));
  EXPECT_FALSE(std::filesystem::exists(folder + "/.epoch-1"));
  EXPECT_TRUE(std::filesystem::exists(folder + "/.epoch-2"));  // may be in use
  std::filesystem::remove_all(folder);
}

TEST(ReplicasTest, a_process_whose_assignment_was_made_by_a_call_that_failed_waits_for_a_follower) {
  const std::string folder = ::testing::TempDir() + "/assigned-" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  HostedShard shard(Layout{{"w", {8}}}, Optimizer::sgd(1.0),
                    {.server = 7,
                     .listen = {testing::kTcp},
                     .secret = kReplicaSecret,
                     .snapshots = folder,
                     .replicas = 2,
                     .replica = kPatient});
  ASSERT_TRUE(assign(folder, shard_role(0), {.epoch = 1, .server = 7, .leader = shard.id()}));
  EXPECT_EQ(shard.attend(shard.assignment(), {}), HostedShard::Attended::kLeads);
  EXPECT_EQ(shard.assignment().leader, shard.id());
  message_of(Code::kTimeout, [&] {
    ParameterClient(shard.addresses(), ClientOptions{.secret = kReplicaSecret, .retry_s = 0.3});
  });
  shard.close();
  std::filesystem::remove_all(folder);
}

TEST(ReplicasTest, both_in_turn_are_lost_and_nothing_else) {
  Places places({.optimizer = Optimizer::momentum(1.0, 0.0, {})});
  const auto client = places.connect();
  const Slab weights = Slab::make(places.layout());
  for (size_t i = 0; i < 10; ++i) {
    client->push(places.ones());
    places.wait_complete();
    places.replace(i % kPlaces);
    client->push_pull(places.ones(), weights);
    EXPECT_EQ(weights.values()[0], static_cast<float>(2 * i + 2));
  }
  EXPECT_EQ(places.count(*client), 20);
}

TEST(ReplicasTest, after_the_loss_of_both_the_newest_snapshot_counts) {
  Places places({});
  const auto client = places.connect();
  client->push(places.ones());
  SnapshotFolder folder(places.folder(), partition(places.layout(), 1), Optimizer::sgd(1.0),
                        places.layout(), nullptr, claim_epoch(places.folder(), kWriterRole));
  const auto leader = places.at(places.leader());
  const SnapshotFolder::Id id = folder.next();
  leader->hold(id.epoch);
  leader->copy(id.epoch);
  folder.commit(id, {{leader->write(id.epoch, id.generation)}});
  leader->set_saved(id.epoch, "");
  client->push(places.ones());
  for (size_t i = 0; i < kPlaces; ++i) places.pause(i, true);
  for (size_t i = 0; i < kPlaces; ++i) places.replace(i);
  for (size_t i = 0; i < kPlaces; ++i) places.pause(i, false);
  client->push(places.ones());
  EXPECT_EQ(places.count(*client), 2);  // the push between snapshot and loss is not there
  EXPECT_EQ(client->sequence(), 3u);
}

TEST(ReplicasTest, a_leader_that_was_replaced_acknowledges_nothing) {
  Places places({});
  const auto client = places.connect();
  client->push(places.ones());
  const auto old = places.replace(0, true);  // Ray started another process: the follower is told
  wait_until([&] { return places.leader() == 1; });
  // The client is still connected to the old leader.
  std::atomic<bool> acknowledged{false};
  std::thread pushing([&] {
    client->push(places.ones());
    acknowledged.store(true);
  });
  std::this_thread::sleep_for(200ms);
  EXPECT_FALSE(acknowledged.load());
  EXPECT_TRUE(old->fence());
  EXPECT_TRUE(old->addresses().empty());
  pushing.join();
  EXPECT_EQ(places.count(*client), 2);
}

TEST(ReplicasTest, replicas_need_a_folder_that_says_who_leads) {
  const auto make = [](HostedShardOptions options) {
    HostedShard(Layout{{"w", {8}}}, Optimizer::sgd(1.0), std::move(options));
  };
  const std::string why =
      message_of(Code::kInvalidArgument, [&] { make({.server = 7, .replicas = 2}); });
  EXPECT_NE(why.find("needs a folder for snapshots"), std::string::npos) << why;
  message_of(Code::kInvalidArgument, [&] { make({.server = 7, .replicas = 3}); });
  message_of(Code::kInvalidArgument,
             [&] { make({.server = 7, .replica = {.timeout_s = std::nan("")}}); });
}

// Every kind of push gives both replicas the same bits.
class ReplicaBits : public ::testing::TestWithParam<std::tuple<Encoding, const char*>> {};

TEST_P(ReplicaBits, are_the_same_at_both) {
  const auto [encoding, listen] = GetParam();
  const bool compensates = encoding == Encoding::kFloat32;
  Places places({.mode = {.compensation = compensates ? 0.5 : 0},
                 .optimizer = Optimizer::adam(0.01, {}, {}),
                 .listen = listen});
  const bool runs = encoding == Encoding::kRuns;
  const auto client = places.connect(20, 5, runs ? Encoding::kFloat32 : encoding);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const Slab slab = Slab::make(places.layout(), Slab::Kind::kShared);
  for (int i = 0; i < 20; ++i) {
    client->pull(slab);
    for (float& each : slab.values()) each = normal(random);
    if (runs) {
      const std::vector<int64_t> rows{i, 500 + i, 999};
      const std::vector<float> values{normal(random), normal(random), normal(random)};
      const GradientPart part{"w", values, true, rows};
      client->push({&part, 1});
    } else {
      client->push(slab);
    }
  }
  const std::vector<float> before = places.read();
  EXPECT_NE(before, std::vector<float>(before.size()));
  const size_t led = places.leader();
  places.replace(led);
  client->pull(slab);
  EXPECT_NE(places.leader(), led);
  EXPECT_EQ(places.read(), before);
}
INSTANTIATE_TEST_SUITE_P(ReplicasTest, ReplicaBits,
                         ::testing::Combine(::testing::Values(Encoding::kFloat32,
                                                              Encoding::kBfloat16, Encoding::kTopK,
                                                              Encoding::kRuns),
                                            ::testing::Values(testing::kTcp, testing::kLocal)));

TEST(ReplicasTest, rounds_of_several_workers_are_the_same_at_both) {
  constexpr int kWorkers = 4, kRounds = 30;
  Places places({.mode = {.staleness = 0, .workers = kWorkers}});
  std::vector<std::thread> working;
  for (uint64_t worker = 1; worker <= kWorkers; ++worker) {
    working.emplace_back([&, worker] {
      const auto client = places.connect(20, worker);
      const Slab gradient = places.ones();
      for (int i = 0; i < kRounds; ++i) client->push(gradient);
    });
  }
  wait_until([&] { return places.leader() < kPlaces && places.read()[0] > kRounds / 2; });
  places.replace(places.leader());
  for (std::thread& thread : working) thread.join();
  EXPECT_EQ(places.count(*places.connect(20, 9)), kRounds);
}

}  // namespace
}  // namespace penstock::train
