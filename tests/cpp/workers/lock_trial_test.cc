#include "penstock/workers/lock_trial.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

// A consumer that checks every 0.1 ms, for a given time; tickets per millisecond in both modes.
struct Looks {
  uint64_t now_ns = 1'000'000'000, done = 0;
  uint64_t ns_of_all = 0;
  bool quick = true;

  void run(LockTrial& trial, uint64_t for_ns, uint64_t one, uint64_t all) {
    ns_of_all = 0;
    for (uint64_t end = now_ns + for_ns; now_ns < end; now_ns += 100'000) {
      const bool together = trial.all(now_ns, done / 10, quick);
      done += together ? all : one;
      ns_of_all += together ? 100'000 : 0;
    }
  }
};

TEST(LockTrial, settles_on_the_better_way_and_tries_the_other_one_now_and_then) {
  LockTrial trial;
  Looks looks;
  looks.run(trial, 20'000'000'000, 500, 200);
  EXPECT_GT(looks.ns_of_all, 0u);
  EXPECT_LT(looks.ns_of_all, 20'000'000'000u / 50);
  looks.run(trial, 4'000'000'000, 200, 500);  // it detects the faster mode
  looks.run(trial, 20'000'000'000, 200, 500);
  EXPECT_GT(looks.ns_of_all, 20'000'000'000u * 49 / 50);
}

TEST(LockTrial, a_little_more_is_not_worth_the_other_cores) {
  LockTrial trial;
  Looks looks;
  looks.run(trial, 20'000'000'000, 500, 520);
  EXPECT_LT(looks.ns_of_all, 20'000'000'000u / 50);
}

TEST(LockTrial, all_that_get_into_each_others_way_later_are_one_again) {
  LockTrial trial;
  Looks looks;
  looks.run(trial, 200'000'000, 200, 500);
  EXPECT_TRUE(trial.all(looks.now_ns, looks.done / 10, true));
  looks.run(trial, 50'000'000, 200, 100);
  EXPECT_FALSE(trial.all(looks.now_ns, looks.done / 10, true));
}

TEST(LockTrial, a_consumer_that_waited_in_vain_gets_all_for_a_while) {
  LockTrial trial;
  Looks looks;
  looks.run(trial, 1'000'000'000, 500, 200);
  EXPECT_FALSE(trial.all(looks.now_ns, looks.done / 10, true));
  trial.waited_too_long(looks.now_ns);
  looks.run(trial, LockTrial::kInVainNs, 500, 200);
  EXPECT_EQ(looks.ns_of_all, LockTrial::kInVainNs);
  looks.run(trial, LockTrial::kTryNs, 500, 200);
  EXPECT_EQ(looks.ns_of_all, 0u);
}

TEST(LockTrial, tickets_that_are_not_quick_are_for_all) {
  LockTrial trial;
  Looks looks{.quick = false};
  looks.run(trial, 5'000'000'000, 500, 200);
  EXPECT_EQ(looks.ns_of_all, 5'000'000'000u) << "not tried";
  looks.quick = true;
  looks.run(trial, 1'000'000'000, 500, 200);
  EXPECT_FALSE(trial.all(looks.now_ns, looks.done / 10, true));
  looks.quick = false;  // tickets take longer now, and both modes do more
  looks.run(trial, 500'000'000, 50, 100);
  looks.run(trial, 5'000'000'000, 50, 100);
  EXPECT_EQ(looks.ns_of_all, 5'000'000'000u);
}

TEST(LockTrial, what_lay_in_between_is_not_measured) {
  LockTrial trial;
  Looks looks;
  looks.run(trial, LockTrial::kTryNs / 2, 500, 200);
  looks.now_ns += 1'000'000'000;  // the consumer did not check, while one worker was busy
  looks.run(trial, LockTrial::kTryNs * 2, 500, 200);
  looks.run(trial, LockTrial::kTryNs, 500, 200);
  EXPECT_FALSE(trial.all(looks.now_ns, looks.done / 10, true));
}

}  // namespace
}  // namespace penstock
