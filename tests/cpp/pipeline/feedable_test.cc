#include <gtest/gtest.h>

#include "numbers.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/api/feeds.h"

namespace penstock {
namespace {

using test::Numbers;
using test::numbers_of;
using test::pass_of;

class FeedableWorkers : public ::testing::TestWithParam<uint32_t> {
 protected:
  static Dataset train() { return Dataset::range(0, 40).shuffle({.seed = 3}).batch(4); }
  static Dataset validation() {
    return Dataset::range(100, 130).filter(test::odd).shuffle({.seed = 2, .buffer = 4}).batch(3);
  }
  LoaderOptions options() const { return {.workers = GetParam()}; }
  Feedable both() const {
    Feedable feeds;
    feeds.add("train", train().build(options()));
    feeds.add("validation", validation().build(options()));
    return feeds;
  }
  static std::vector<Numbers> rest_of_feed(Feedable& feeds, const std::string& name) {
    std::vector<Numbers> all;
    while (auto batch = feeds.next(name)) all.push_back(numbers_of(*batch));
    return all;
  }
};
INSTANTIATE_TEST_SUITE_P(, FeedableWorkers, ::testing::Values(0, 1, 3));

TEST_P(FeedableWorkers, each_keeps_its_place) {
  Loader alone = train().build({.workers = 0}), other = validation().build({.workers = 0});
  const auto first = pass_of(alone), second = pass_of(alone);
  const auto checks = pass_of(other), again = pass_of(other);
  Feedable feeds = both();
  std::vector<Numbers> trained, checked;
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) trained.push_back(numbers_of(*feeds.next("train")));
    checked.push_back(numbers_of(*feeds.next("validation")));
  }
  for (Numbers& batch : rest_of_feed(feeds, "train")) trained.push_back(std::move(batch));
  EXPECT_EQ(trained, first);
  EXPECT_EQ(rest_of_feed(feeds, "train"), second);
  for (Numbers& batch : rest_of_feed(feeds, "validation")) checked.push_back(std::move(batch));
  EXPECT_EQ(checked, checks);
}

TEST_P(FeedableWorkers, reset_begins_the_next_pass_wherever_it_is) {
  Loader alone = train().build({.workers = 0});
  std::vector<std::vector<Numbers>> passes;
  for (int i = 0; i < 4; ++i) passes.push_back(pass_of(alone));
  Feedable feeds = both();
  feeds.reset("train");  // at its front
  EXPECT_EQ(numbers_of(*feeds.next("train")), passes[0][0]);
  const std::string amid = feeds.state();
  feeds.reset("train");
  EXPECT_EQ(rest_of_feed(feeds, "train"), passes[1]);
  feeds.reset("train");  // after its end
  EXPECT_EQ(rest_of_feed(feeds, "train"), passes[2]);
  feeds.restore(amid);
  feeds.reset("train");
  EXPECT_EQ(rest_of_feed(feeds, "train"), passes[1]);
  feeds.restore(amid);
  EXPECT_EQ(numbers_of(*feeds.next("train")), passes[0][1]);
}

TEST_P(FeedableWorkers, another_one_takes_a_place) {
  Feedable feeds = both();
  const Numbers before = numbers_of(*feeds.next("validation"));
  (void)feeds.next("train");
  feeds.reset("validation", Dataset::range(7).batch(7).build(options()));
  EXPECT_EQ(rest_of_feed(feeds, "validation"), (std::vector<Numbers>{{0, 1, 2, 3, 4, 5, 6}}));
  EXPECT_EQ(rest_of_feed(feeds, "train").size(), 9u);
}

TEST_P(FeedableWorkers, a_state_of_all_restores_or_changes_nothing) {
  Feedable feeds = both();
  for (int i = 0; i < 4; ++i) (void)feeds.next("train");
  (void)feeds.next("validation");
  const std::string state = feeds.state();
  const auto trained = rest_of_feed(feeds, "train"), checked = rest_of_feed(feeds, "validation");
  Feedable other = both();
  other.restore(state);
  EXPECT_EQ(other.state(), state);
  EXPECT_EQ(rest_of_feed(other, "train"), trained);
  EXPECT_EQ(rest_of_feed(other, "validation"), checked);

  Feedable of_others;
  of_others.add("train", train().build(options()));
  of_others.add("validation", train().build(options()));
  (void)of_others.next("train");
  const std::string place = of_others.state();
  for (const std::string& wrong : {state, std::string("{}"), std::string("[]"), std::string("{"),
                                   std::string("{\"train\":1,\"validation\":2}")}) {
    EXPECT_THROW(of_others.restore(wrong), Error) << wrong;
    EXPECT_EQ(of_others.state(), place);
  }
  EXPECT_EQ(rest_of_feed(of_others, "train").size(), 9u);
}

TEST_P(FeedableWorkers, names_and_closing) {
  Feedable feeds = both();
  EXPECT_THROW(feeds.add("train", train().build(options())), Error);
  try {
    (void)feeds.next("test");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kNotFound);
    EXPECT_NE(std::string(error.what()).find("'train', 'validation'"), std::string::npos);
  }
  auto batch = feeds.next("train");
  feeds.close();
  EXPECT_EQ(numbers_of(*batch).size(), 4u);
  EXPECT_TRUE(feeds["train"].closed());
  EXPECT_THROW((void)feeds.next("train"), Error);
}

}  // namespace
}  // namespace penstock
