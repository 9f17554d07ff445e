#include "penstock/train/server/snapshot_saver.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "penstock/base/clock.h"
#include "tests/cpp/memory/child.h"
#include "tests/cpp/train/refusals.h"
#include "tests/cpp/train/serving.h"

namespace penstock::train {
namespace {

using penstock::testing::start_child;
using penstock::testing::status_of;
using testing::Full;
using testing::message_of;
using testing::OneShard;

TEST(SnapshotSaver, changes_after_the_first_snapshot_are_in_the_last) {
  const std::string folder = ::testing::TempDir() + "/saver-" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  const Layout layout{{"w", {OneShard::kFloats}}};
  OneShard one;
  auto open = [&] {
    return std::make_unique<SnapshotFolder>(folder, std::vector<Range>{{0, OneShard::kFloats}},
                                            one.optimizer, layout);
  };
  auto saved = [&] {
    const auto snapshots = open();
    EXPECT_TRUE(snapshots->find());
    return snapshots->load(0).record;
  };
  one.shard->join({7, "a", ""});
  {
    SnapshotSaver saver({one.memory}, open(), 1000);
    EXPECT_EQ(one.memory->saved().version, 0u);
    one.shard->push(Full(7, 1, -1).push);
    saver.end();
    EXPECT_EQ(one.memory->saved().version, 1u);
    EXPECT_EQ(saved().version, 1u);
    EXPECT_NO_THROW(saver.end());
  }
  {  // also changes without weights
    const SnapshotSaver saver({one.memory}, open(), 1000);
    one.shard->leave(7);
  }
  EXPECT_EQ(saved().rows[0].worker, 0u);
  {
    SnapshotSaver saver({one.memory}, open(), 1000);
    one.shard->join({8, "b", ""});
    std::filesystem::remove_all(folder);
    const std::string why = message_of(Code::kSystem, [&] { saver.end(); });
    EXPECT_NE(why.find("last snapshot could not be written"), std::string::npos) << why;
    EXPECT_NE(why.find(folder), std::string::npos) << why;
  }
}

// One worker pushes to both shards, to the second once the first has answered, so at no moment is
// the second ahead, or more than one push behind.
TEST(SnapshotSaver, a_snapshot_is_the_state_of_one_moment) {
  OneShard first, second;
  for (OneShard* shard : {&first, &second}) shard->shard->join({7, "a", ""});
  std::atomic<bool> stop{false};
  std::thread pushing([&] {
    for (uint64_t sequence = 1; !stop; ++sequence) {
      const Full full(7, sequence, -1);
      first.shard->push(full.push);
      second.shard->push(full.push);
    }
  });
  for (int i = 0; i < 50; ++i) {
    const auto copies = copy_at_one_moment({second.memory, first.memory});
    const uint64_t behind = copies[1]->record.version - copies[0]->record.version;
    EXPECT_LE(behind, 1u);
    for (const auto& copy : copies) {
      EXPECT_EQ(copy->weights.front(), static_cast<float>(copy->record.version));
      EXPECT_EQ(copy->weights.back(), copy->weights.front());
      EXPECT_EQ(copy->record.rows[0].sequence, copy->record.version);
    }
  }
  stop = true;
  pushing.join();
}

TEST(SnapshotSaver, a_shard_killed_in_the_middle_of_a_change_is_copied_once_it_is_back) {
  OneShard one;
  one.shard.reset();
  const pid_t child = start_child([&] {
    one.start_again();
    one.shard->join({7, "a", ""});
    one.memory->crash_at(CrashPoint::kInApply);
    one.shard->push(Full(7, 1, -1).push);
    return true;
  });
  ASSERT_TRUE(WIFSIGNALED(status_of(child)));
  ShardMemory::Hold hold(*one.memory);
  EXPECT_FALSE(hold.wait(Deadline(0.05)));
  one.start_again();
  EXPECT_TRUE(hold.wait(Deadline(5)));
  EXPECT_EQ(one.memory->checkpoint()->record.version, 0u);
}

TEST(SnapshotSaver, a_hold_that_is_not_renewed_stops_no_shard_for_ever) {
  OneShard one;
  one.shard->join({7, "a", ""});
  ShardMemory::Hold hold(*one.memory);
  const uint64_t begin = now_ns();
  one.shard->push(Full(7, 1, -1).push);  // returns: that is the test
  EXPECT_GT(now_ns() - begin, 1e9 * (ShardMemory::Hold::kHoldS - 1));
  EXPECT_FALSE(hold.renew());  // what was copied is discarded
}

}  // namespace
}  // namespace penstock::train
