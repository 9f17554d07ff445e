#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "penstock/base/error.h"
#include "penstock/train/optimizer.h"

namespace penstock::train {
namespace {

TEST(Schedule, a_number_is_a_constant) {
  const Schedule lr = 0.25;
  EXPECT_EQ(lr.at(0), 0.25);
  EXPECT_EQ(lr.at(UINT64_MAX), 0.25);
}

TEST(Schedule, steps_change_it_at_and_not_before) {
  const Schedule lr = Schedule::steps(1, {3, 5, 5}, 0.5);
  const double expected[] = {1, 1, 1, 0.5, 0.5, 0.125, 0.125};
  for (uint64_t step = 0; step < 7; ++step) EXPECT_EQ(lr.at(step), expected[step]) << step;
  EXPECT_EQ(Schedule::steps(2, {}).at(9), 2);
}

TEST(Schedule, exponential_is_a_product_step_by_step) {
  double expected = 3;
  const Schedule lr = Schedule::exponential(3, 0.9);
  for (uint64_t step = 0; step < 50; ++step, expected *= 0.9) {
    EXPECT_NEAR(lr.at(step), expected, 1e-13);
  }
  EXPECT_DOUBLE_EQ(Schedule::exponential(1, 0.25, 10).at(5), 0.5);
  EXPECT_DOUBLE_EQ(Schedule::exponential(1, 0.25, 10).at(20), 0.0625);
}

TEST(Schedule, cosine_goes_down_to_its_end_and_stays_there) {
  const Schedule lr = Schedule::cosine(1, 4, 0.2);
  EXPECT_DOUBLE_EQ(lr.at(0), 1);
  EXPECT_NEAR(lr.at(1), 0.2 + 0.4 * (1 + std::sqrt(0.5)), 1e-15);
  EXPECT_NEAR(lr.at(2), 0.6, 1e-15);
  EXPECT_EQ(lr.at(4), 0.2);
  EXPECT_EQ(lr.at(4000), 0.2);
}

TEST(Schedule, a_warm_up_comes_before_any) {
  const Schedule lr = Schedule::steps(1, {2}, 0.5).after_warmup(3);
  const double expected[] = {0.25, 0.5, 0.75, 1, 1, 0.5, 0.5};
  for (uint64_t step = 0; step < 7; ++step) EXPECT_DOUBLE_EQ(lr.at(step), expected[step]) << step;
  EXPECT_THROW(lr.after_warmup(1), Error);
}

TEST(Schedule, invalid_arguments_are_refused) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  for (double bad : {-1.0, nan, infinity}) {
    EXPECT_THROW(Schedule{bad}, Error);
    EXPECT_THROW(Schedule::steps(1, {1}, bad), Error);
    EXPECT_THROW(Schedule::exponential(1, bad), Error);
    EXPECT_THROW(Schedule::cosine(1, 1, bad), Error);
  }
  EXPECT_THROW(Schedule::steps(1, {2, 1}), Error);
  EXPECT_THROW(Schedule::exponential(1, 1, 0), Error);
  EXPECT_THROW(Schedule::cosine(1, 0), Error);
  EXPECT_THROW(Schedule(1).after_warmup(0), Error);
}

}  // namespace
}  // namespace penstock::train
