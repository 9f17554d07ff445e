#include "penstock/train/server/shard.h"

#include <signal.h>
#include <unistd.h>

#include <limits>
#include <string>
#include <vector>

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

TEST(Shard, a_push_that_is_repeated_counts_once) {
  for (uint32_t copies : {1u, 2u}) {
    OneShard one({}, copies);
    EXPECT_EQ(one.shard->join({7, "a", ""}).sequence, 0u);
    for (uint64_t sequence = 1; sequence <= 5; ++sequence) {
      const Full full(7, sequence, -1);
      for (int again = 0; again < 3; ++again) {
        const auto answer = one.shard->push(full.push);
        EXPECT_EQ(answer.outcome, Outcome::kApplied);
        EXPECT_EQ(answer.version, sequence);
      }
    }
    EXPECT_TRUE(one.all_weights_are(5));
    EXPECT_EQ(one.shard->join({7, "a", ""}).sequence, 5u);
    // An older push that arrives late is recognised, too.
    one.shard->push(Full(7, 3, -1).push);
    EXPECT_TRUE(one.all_weights_are(5));
    EXPECT_EQ(one.memory->record().version, 5u);
  }
}

TEST(Shard, both_forms_of_memory_and_the_updater_give_the_same_bits) {
  const Optimizer adam = Optimizer::adam(0.01, {}, {.clip_norm = 3});
  OneShard single({}, 1, adam), twice({}, 2, adam);
  Parameters parameters(Layout{{"w", {OneShard::kFloats}}});
  Updater updater(parameters, adam);
  Slab gradient = parameters.gradients();
  single.shard->join({1, "", ""});
  twice.shard->join({1, "", ""});
  for (uint64_t sequence = 1; sequence <= 4; ++sequence) {
    const auto values = gradient.values();
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = std::sin(static_cast<float>(i * sequence));
    }
    Full full(1, sequence, 0);
    full.push.gradient = Gradient(Encoding::kFloat32, std::as_bytes(values), OneShard::kFloats);
    full.push.squares = kernels::sum_of_squares(values);
    single.shard->push(full.push);
    twice.shard->push(full.push);
    updater.apply(gradient);
  }
  for (const OneShard* one : {&single, &twice}) {
    EXPECT_TRUE(std::ranges::equal(one->memory->weights(one->memory->current().copy),
                                   parameters.slab().values()));
  }
}

// The shard kills its own process at each point of a push.
class ShardDeath : public ::testing::TestWithParam<CrashPoint> {};

TEST_P(ShardDeath, no_push_is_lost_or_applied_twice) {
  OneShard one({}, 2, Optimizer::momentum(1.0, 0.5, {}));
  one.shard->join({7, "a", ""});
  uint64_t sequence = 0;
  float velocity = 0, expected = 0;
  for (int round = 0; round < 3; ++round) {
    one.shard->push(Full(7, ++sequence, -1).push);  // this one was acknowledged
    velocity = 0.5f * velocity - 1;
    expected -= velocity;
    const Full next(7, ++sequence, -1);
    one.memory->crash_at(GetParam());
    one.shard.reset();
    const pid_t child = start_child([&] {
      one.start_again();
      one.shard->join({7, "a", ""});
      one.shard->push(next.push);
      return true;
    });
    const int status = status_of(child);
    ASSERT_TRUE(WIFSIGNALED(status));
    ASSERT_EQ(WTERMSIG(status), SIGKILL);
    one.start_again();
    const LedgerRow known = one.shard->join({7, "a", ""});
    EXPECT_EQ(known.sequence, GetParam() == CrashPoint::kAfterCommit ? sequence : sequence - 1);
    EXPECT_EQ(one.shard->push(next.push).outcome, Outcome::kApplied);
    velocity = 0.5f * velocity - 1;
    expected -= velocity;
    EXPECT_EQ(one.memory->current().version, sequence);
    ASSERT_TRUE(one.all_weights_are(expected)) << one.weight() << " is not " << expected;
  }
}
INSTANTIATE_TEST_SUITE_P(Points, ShardDeath,
                         ::testing::Values(CrashPoint::kBeforeApply, CrashPoint::kInApply,
                                           CrashPoint::kBeforeCommit, CrashPoint::kAfterCommit),
                         [](const auto& of) -> std::string {
                           switch (of.param) {
                             case CrashPoint::kBeforeApply:
                               return "before_apply";
                             case CrashPoint::kInApply:
                               return "in_apply";
                             case CrashPoint::kBeforeCommit:
                               return "before_commit";
                             default:
                               return "after_commit";
                           }
                         });

TEST(Shard, a_non_finite_gradient_follows_the_policy) {
  Full bad(1, 1, 1);
  bad.push.squares = std::numeric_limits<double>::quiet_NaN();
  OneShard raise({.non_finite = NonFinite::kRaise});
  raise.shard->join({1, "", ""});
  message_of(Code::kInvalidArgument, [&] { raise.shard->push(bad.push); });
  EXPECT_EQ(raise.memory->record().rows[0].sequence, 0u);
  OneShard skip({.non_finite = NonFinite::kSkip});
  skip.shard->join({1, "", ""});
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(skip.shard->push(bad.push).outcome, Outcome::kSkipped);
  }
  EXPECT_EQ(skip.memory->record().skipped, 1u);
  EXPECT_TRUE(skip.all_weights_are(0));
  OneShard count({.non_finite = NonFinite::kCount});
  count.shard->join({1, "", ""});
  EXPECT_EQ(count.shard->push(bad.push).outcome, Outcome::kApplied);
  EXPECT_EQ(count.memory->record().non_finite, 1u);
}

TEST(Shard, delay_compensation_is_the_papers_formula) {
  OneShard one({.compensation = 0.5});
  one.shard->join({1, "", ""});
  const std::vector<float> base(OneShard::kFloats, 3);
  Full full(1, 1, 2);
  message_of(Code::kInvalidArgument, [&] { one.shard->push(full.push); });
  full.push.base_weights = base;
  one.shard->push(full.push);
  // w = 0: g + lambda g^2 (w - base) = 2 + 0.5 * 4 * -3
  EXPECT_TRUE(one.all_weights_are(4));
}

TEST(Shard, a_restored_checkpoint_continues_bit_for_bit_and_knows_its_workers) {
  const Optimizer adam = Optimizer::adam(0.1, {}, {});
  OneShard one({}, 1, adam), other({}, 2, adam);
  one.shard->join({4, "", ""});
  for (uint64_t sequence = 1; sequence <= 3; ++sequence) {
    one.shard->push(Full(4, sequence, 0.5f).push);
  }
  const auto checkpoint = one.memory->checkpoint();
  other.shard->restore(*checkpoint);
  EXPECT_EQ(other.shard->join({4, "", ""}).sequence, 3u);
  other.shard->push(Full(4, 3, 0.5f).push);
  EXPECT_EQ(other.weight(), one.weight());
  for (OneShard* each : {&one, &other}) each->shard->push(Full(4, 4, -1).push);
  EXPECT_EQ(other.weight(), one.weight());
}

}  // namespace
}  // namespace penstock::train
