#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "penstock/train/server/shard.h"
#include "tests/cpp/train/refusals.h"
#include "tests/cpp/train/serving.h"

namespace penstock::train {
namespace {

using testing::Full;
using testing::message_of;
using testing::OneShard;

constexpr uint64_t kId = 7;
constexpr double kLeaseS = 0.02;

void let_leases_expire() {
  std::this_thread::sleep_for(std::chrono::duration<double>(2 * kLeaseS));
}

// Workers that take all rows but one, and then one more when all of them are silent.
void crowd_out(Shard& shard, bool chosen) {
  for (uint64_t id = 1000; id < 1000 + kMaxWorkers - 1; ++id) {
    shard.join({.id = id, .chosen = chosen});
  }
  let_leases_expire();
  shard.join({.id = 1, .chosen = chosen});
}

TEST(ShardIdentity, a_push_in_doubt_is_not_let_in_again_after_its_row_was_given_away) {
  OneShard one({.lease_s = kLeaseS});
  const auto first = one.shard->join({.id = kId});
  one.shard->push(Full(kId, 1, -1).push);  // the answer to which does not arrive
  let_leases_expire();
  crowd_out(*one.shard, false);
  const std::string why = message_of(Code::kInvalidArgument, [&] {
    one.shard->join(
        {.id = kId, .in_doubt = 1, .evictions = first.evictions, .incarnation = first.incarnation});
  });
  EXPECT_NE(why.find("push 1"), std::string::npos) << why;
  // A worker that has its answers is welcome, and its last push is still known as decided.
  const auto again = one.shard->join(
      {.id = kId, .decided = 1, .evictions = first.evictions, .incarnation = first.incarnation});
  EXPECT_EQ(again.sequence, 1u);
  one.shard->push(Full(kId, 1, -1).push);
  EXPECT_TRUE(one.all_weights_are(1));
  one.shard->push(Full(kId, 2, -1).push);
  EXPECT_TRUE(one.all_weights_are(2));
}

TEST(ShardIdentity, a_push_in_doubt_is_let_in_where_an_older_snapshot_is_continued) {
  OneShard one, restored;
  const auto before = one.memory->checkpoint();
  const auto known = one.shard->join({.id = kId});
  one.shard->push(Full(kId, 1, -1).push);
  restored.shard->restore(*before);
  restored.shard->join(
      {.id = kId, .in_doubt = 1, .evictions = known.evictions, .incarnation = known.incarnation});
  restored.shard->push(Full(kId, 1, -1).push);
  EXPECT_TRUE(restored.all_weights_are(1));
}

TEST(ShardIdentity, a_chosen_id_is_remembered_after_its_client_has_left) {
  OneShard one({.staleness = 0});
  one.shard->join({.id = kId, .chosen = true});
  one.shard->push(Full(kId, 1, -1).push);
  one.shard->leave(kId);
  one.start_again({.staleness = 0});
  one.shard->join({.id = 8});
  one.shard->push(Full(8, 1, -1).push);  // does not wait for the one that has left
  const auto again = one.shard->join({.id = kId, .chosen = true});
  EXPECT_FALSE(again.is_new);
  EXPECT_EQ(again.sequence, 1u);
  EXPECT_EQ(again.clock, 1u);  // that of the slowest
  one.shard->push(Full(kId, 1, -1).push);
  EXPECT_TRUE(one.all_weights_are(2));
}

TEST(ShardIdentity, rows_of_chosen_ids_are_given_to_nobody) {
  OneShard one({.lease_s = kLeaseS});
  one.shard->join({.id = kId, .chosen = true});
  let_leases_expire();
  const std::string why = message_of(Code::kOutOfMemory, [&] { crowd_out(*one.shard, true); });
  EXPECT_NE(why.find("worker_id"), std::string::npos) << why;
  EXPECT_FALSE(one.shard->join({.id = kId, .chosen = true}).is_new);
}

TEST(ShardIdentity, a_client_whose_id_was_taken_over_changes_nothing) {
  OneShard one;
  const auto older = one.shard->join({.id = kId, .chosen = true});
  const auto newer = one.shard->join({.id = kId, .chosen = true});
  EXPECT_GT(newer.incarnation, older.incarnation);
  Full late(kId, 1, -1);
  late.push.hello = older.hello;
  message_of(Code::kClosed, [&] { one.shard->push(late.push); });
  one.shard->leave(kId, older.hello);
  const std::string why = message_of(Code::kInvalidArgument, [&] {
    one.shard->join({.id = kId, .chosen = true, .incarnation = older.incarnation});
  });
  EXPECT_NE(why.find("taken over"), std::string::npos) << why;
  Full fresh(kId, 1, -1);
  fresh.push.hello = newer.hello;
  one.shard->push(fresh.push);
  EXPECT_TRUE(one.all_weights_are(1));
}

}  // namespace
}  // namespace penstock::train
