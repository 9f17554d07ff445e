#include "penstock/train/server/snapshot_folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "penstock/train/server/epoch.h"
#include "tests/cpp/io/memory_files.h"
#include "tests/cpp/memory/child.h"
#include "tests/cpp/train/refusals.h"

namespace penstock::train {
namespace {

using penstock::testing::kill_child;
using penstock::testing::start_child;
using testing::message_of;

// A folder for the lock; the other files are in memory.
class SnapshotFolderTest : public ::testing::Test {
 protected:
  SnapshotFolderTest() { std::filesystem::create_directories(folder_); }
  ~SnapshotFolderTest() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<SnapshotFolder> open() {
    return std::make_unique<SnapshotFolder>(folder_, ranges_, optimizer_, layout_, files_);
  }

  // The state of two shards after `version` updates.
  std::vector<std::unique_ptr<ShardCheckpoint>> state(uint64_t version) const {
    std::vector<std::unique_ptr<ShardCheckpoint>> shards;
    for (const Range& range : ranges_) {
      auto shard = std::make_unique<ShardCheckpoint>();
      shard->record.version = version;
      shard->weights.assign(range.size(), static_cast<float>(version));
      shard->states.assign(1, shard->weights);
      shards.push_back(std::move(shard));
    }
    return shards;
  }

  // The version of the snapshot that a new server finds; -1: none.
  int64_t found() {
    const auto snapshots = open();
    if (!snapshots->find()) return -1;
    damaged_ = snapshots->damaged();
    const ShardCheckpoint first = snapshots->load(0), second = snapshots->load(1);
    EXPECT_EQ(first.record.version, second.record.version);
    EXPECT_EQ(first.weights, state(first.record.version)[0]->weights);
    EXPECT_EQ(second.states, state(first.record.version)[1]->states);
    return static_cast<int64_t>(first.record.version);
  }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  const std::string folder_ = ::testing::TempDir() + "/snapshots-" + std::to_string(getpid());
  const Layout layout_{{"w", {1100}}};
  const std::vector<Range> ranges_{{0, 100}, {100, 1100}};
  const Optimizer optimizer_ = Optimizer::momentum(1.0, 0.5, {});
  const std::shared_ptr<MemoryFiles> files_ = std::make_shared<MemoryFiles>();
  std::vector<std::string> damaged_;
};

TEST_F(SnapshotFolderTest, a_save_that_fails_leaves_the_snapshot_before_it) {
  EXPECT_EQ(found(), -1);
  {
    const auto snapshots = open();
    EXPECT_FALSE(snapshots->find());
    snapshots->save(state(1));
    files_->full_after = 2000;  // enough for the first shard
    EXPECT_THROW(snapshots->save(state(2)), Error);
  }
  EXPECT_EQ(files_->kind(path("shard-0-of-2.2.2.safetensors")), FileSystem::Kind::kFile);
  EXPECT_EQ(found(), 1);
  EXPECT_TRUE(damaged_.empty());
  files_->full_after = UINT64_MAX;
  const auto snapshots = open();
  EXPECT_TRUE(snapshots->find());
  snapshots->save(state(3));  // over the files of the one that failed
  EXPECT_TRUE(snapshots->find());
  EXPECT_EQ(snapshots->load(1).record.version, 3u);
}

TEST_F(SnapshotFolderTest, a_damaged_snapshot_is_passed_over_and_named) {
  {
    const auto snapshots = open();
    for (uint64_t version = 1; version <= 4; ++version) snapshots->save(state(version));
  }
  files_->remove(path("shard-1-of-2.1.4.safetensors"));
  EXPECT_EQ(found(), 3);
  ASSERT_EQ(damaged_.size(), 1u);
  EXPECT_NE(damaged_[0].find("shard-1-of-2.1.4.safetensors"), std::string::npos) << damaged_[0];
  // One bit of a weight, which no other check would notice.
  (*files_)[path("shard-0-of-2.1.3.safetensors")].back() ^= 1;
  EXPECT_EQ(found(), 2);
  ASSERT_EQ(damaged_.size(), 2u);
  EXPECT_NE(damaged_[1].find("shard-0-of-2.1.3.safetensors"), std::string::npos) << damaged_[1];
  (*files_)[path("snapshot.1.2.json")].resize(20);
  EXPECT_EQ(found(), 1);
  EXPECT_NE(damaged_[2].find("snapshot.1.2.json"), std::string::npos) << damaged_[2];
  // The next one is newer than all of these.
  {
    const auto snapshots = open();
    snapshots->find();
    snapshots->save(state(5));
  }
  EXPECT_EQ(files_->kind(path("snapshot.5.5.json")), FileSystem::Kind::kFile);
  EXPECT_EQ(found(), 5);
  files_->remove(path("snapshot.5.5.json"));
  (*files_)[path("snapshot.1.1.json")] = "{}";
  const std::string why = message_of(Code::kDataLoss, [&] { found(); });
  EXPECT_NE(why.find("shard-1-of-2.1.4.safetensors"), std::string::npos) << why;
}

TEST_F(SnapshotFolderTest, the_last_three_are_kept_on_disk) {
  SnapshotFolder snapshots(folder_, ranges_, optimizer_, layout_);
  std::set<std::string> expected{"lock", "writer.1.epoch"};
  for (uint64_t version = 1; version <= 5; ++version) {
    snapshots.save(state(version));
    if (version < 3) continue;
    const std::string end = ".1." + std::to_string(version);
    expected.insert("snapshot" + end + ".json");
    expected.insert("shard-0-of-2" + end + ".safetensors");
    expected.insert("shard-1-of-2" + end + ".safetensors");
  }
  std::set<std::string> names;
  for (const auto& each : std::filesystem::directory_iterator(folder_)) {
    names.insert(each.path().filename());
  }
  EXPECT_EQ(names, expected);
}

TEST_F(SnapshotFolderTest, another_number_of_shards_layout_or_optimizer_is_refused) {
  open()->save(state(1));
  auto why = [&](const std::vector<Range>& ranges, const Optimizer& optimizer,
                 const Layout& layout) {
    return message_of(Code::kInvalidArgument, [&] {
      SnapshotFolder other(folder_, ranges, optimizer, layout, files_);
      other.find();
      other.load(0);
    });
  };
  EXPECT_NE(why({{0, 1100}}, optimizer_, layout_).find("number of shards"), std::string::npos);
  EXPECT_NE(why(ranges_, Optimizer::adagrad(1.0, 1e-8, 0, {}), layout_).find("optimizer"),
            std::string::npos);
  EXPECT_NE(why(ranges_, optimizer_, Layout{{"v", {1100}}}).find("layout"), std::string::npos);
}

TEST_F(SnapshotFolderTest, a_writer_that_was_replaced_is_refused_by_its_epoch) {
  auto writer = [&] {
    return std::make_unique<SnapshotFolder>(folder_, ranges_, optimizer_, layout_, nullptr,
                                            claim_epoch(folder_, kWriterRole), files_);
  };
  const auto old = writer();
  old->save(state(1));
  const SnapshotFolder::Id late = old->next();
  const std::vector<SnapshotFolder::Part> parts{old->write(0, late, *state(9)[0]),
                                                old->write(1, late, *state(9)[1])};
  const auto replacement = writer();
  replacement->save(state(2));
  const std::string why = message_of(Code::kClosed, [&] { old->commit(late, parts); });
  EXPECT_NE(why.find("epoch 2 writes the snapshots"), std::string::npos) << why;
  EXPECT_EQ(found(), 2);
  // If it was stopped between that check and the manifest's appearance, its snapshot is older than
  // those of its replacement, whatever its generation.
  SnapshotFolder unchecked(folder_, ranges_, optimizer_, layout_, nullptr, UINT64_MAX - 1, files_);
  unchecked.commit({.epoch = 1, .generation = 99}, parts);
  EXPECT_EQ(found(), 2);
}

TEST_F(SnapshotFolderTest, the_state_of_a_shard_that_was_replaced_is_refused_by_its_epoch) {
  const auto snapshots = open();
  const SnapshotFolder::Id id = snapshots->next();
  std::vector<SnapshotFolder::Part> parts;
  for (size_t i = 0; i < 2; ++i) {
    parts.push_back(snapshots->write(i, id, *state(1)[i]));
    parts[i].epoch = claim_epoch(folder_, shard_role(i));
  }
  snapshots->commit(id, parts);
  EXPECT_EQ(claim_epoch(folder_, shard_role(1)), 2u);
  const std::string why =
      message_of(Code::kClosed, [&] { snapshots->commit(snapshots->next(), parts); });
  EXPECT_NE(why.find("shard 1 with epoch 1"), std::string::npos) << why;
}

TEST_F(SnapshotFolderTest, one_shard_is_restored_without_reading_the_others) {
  open()->save(state(1));
  files_->remove(path("shard-0-of-2.1.1.safetensors"));
  const auto snapshots = open();
  EXPECT_TRUE(snapshots->find(1));
  EXPECT_EQ(snapshots->load(1).record.version, 1u);
  message_of(Code::kDataLoss, [&] { snapshots->find(0); });
}

TEST(EpochTest, processes_that_claim_at_the_same_time_get_different_epochs) {
  const std::string folder = ::testing::TempDir() + "/epochs-" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  EXPECT_EQ(newest_epoch(folder, shard_role(1)), 0u);
  constexpr size_t kThreads = 4, kClaims = 25;
  std::vector<std::vector<uint64_t>> claimed(kThreads);
  std::vector<std::thread> threads;
  for (auto& mine : claimed) {
    threads.emplace_back([&folder, &mine] {
      for (size_t i = 0; i < kClaims; ++i) mine.push_back(claim_epoch(folder, shard_role(1)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<uint64_t> all;
  for (const auto& mine : claimed) {
    EXPECT_TRUE(std::ranges::is_sorted(mine));
    all.insert(mine.begin(), mine.end());
  }
  EXPECT_EQ(all.size(), kThreads * kClaims);
  EXPECT_EQ(newest_epoch(folder, shard_role(1)), *all.rbegin());
  EXPECT_EQ(newest_epoch(folder, shard_role(11)), 0u);
  EXPECT_EQ(claim_epoch(folder, kWriterRole), 1u);
  std::filesystem::remove_all(folder);
  message_of(Code::kNotFound, [&] { claim_epoch(folder, kWriterRole); });
}

TEST_F(SnapshotFolderTest, one_server_at_a_time_uses_a_folder) {
  auto first = open();
  const std::string why = message_of(Code::kInvalidArgument, [&] { open(); });
  EXPECT_NE(why.find("process " + std::to_string(getpid())), std::string::npos) << why;
  EXPECT_NE(why.find(folder_), std::string::npos) << why;
  // A forked child does not keep the folder locked.
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = start_child([&] {
    while (write(ready[1], "", 1) == 1) pause();
    return true;
  });
  char byte = 0;
  EXPECT_EQ(read(ready[0], &byte, 1), 1);
  first.reset();
  EXPECT_NO_THROW(open());
  kill_child(child);
  close(ready[0]);
  close(ready[1]);
}

}  // namespace
}  // namespace penstock::train
