#include "penstock/train/updater.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>

#include "penstock/base/error.h"
#include "tests/cpp/train/optimizers.h"
#include "tests/cpp/train/refusals.h"

namespace penstock::train {
namespace {

using testing::a_layout;
using testing::all_optimizers;
using testing::fill;
using testing::message_of;
using testing::same_bits;

using Common = Optimizer::Common;

TEST(Optimizer, needs_as_many_slabs_as_its_formula_has) {
  const size_t expected[] = {0, 1, 1, 1, 1, 2, 2, 2};
  const auto all = all_optimizers();
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].state_slabs(), expected[i]);
  EXPECT_EQ(all.back().name(), "adamw");
}

TEST(Optimizer, invalid_hyper_parameters_are_refused) {
  const double nan = std::nan("");
  EXPECT_NE(message_of(Code::kInvalidArgument, [] { Optimizer::sgd(-1); }).find("lr is -1"),
            std::string::npos);
  EXPECT_NE(message_of(Code::kInvalidArgument, [] { Optimizer::sgd(1, {.weight_decay = -1}); })
                .find("weight_decay"),
            std::string::npos);
  EXPECT_NE(message_of(Code::kInvalidArgument, [] { Optimizer::sgd(1, {.clip_value = 0}); })
                .find("clip_value"),
            std::string::npos);
  EXPECT_NE(message_of(Code::kInvalidArgument, [&] { Optimizer::sgd(1, {.clip_norm = nan}); })
                .find("clip_norm"),
            std::string::npos);
  EXPECT_NE(message_of(Code::kInvalidArgument,
                       [] { Optimizer::sgd(1, {.clip_value = 1, .clip_norm = 1}); })
                .find("both"),
            std::string::npos);
  EXPECT_NE(message_of(Code::kInvalidArgument, [] { Optimizer::momentum(1, 1, {}); })
                .find("momentum is 1"),
            std::string::npos);
  EXPECT_NE(message_of(Code::kInvalidArgument, [] { Optimizer::adam(1, {.beta2 = 1.5}, {}); })
                .find("adam: beta2"),
            std::string::npos);
  EXPECT_NE(
      message_of(Code::kInvalidArgument, [] { Optimizer::adam(1, {.eps = 0}, {}); }).find("eps"),
      std::string::npos);
  EXPECT_NE(message_of(Code::kInvalidArgument, [] { Optimizer::rmsprop(1, {.alpha = -0.1}, {}); })
                .find("alpha"),
            std::string::npos);
  EXPECT_NE(
      message_of(Code::kInvalidArgument, [] { Optimizer::adagrad(1, 1e-60, 0, {}); }).find("eps"),
      std::string::npos)
      << "it would be 0 as a float";
  EXPECT_NE(message_of(Code::kInvalidArgument, [] { Optimizer::adagrad(1, 1e-10, -1, {}); })
                .find("initial"),
            std::string::npos);
}

TEST(Updater, gaps_stay_zero_and_versions_count) {
  for (const Optimizer& optimizer : all_optimizers({.weight_decay = 0.1})) {
    Parameters parameters(a_layout());
    fill(parameters.slab(), 1);
    Updater updater(parameters, optimizer);
    const Slab gradients = parameters.gradients();
    for (uint64_t step = 0; step < 5; ++step) {
      fill(gradients, 10 + step);
      EXPECT_TRUE(updater.apply(gradients));
    }
    EXPECT_EQ(updater.step(), 5u);
    EXPECT_EQ(parameters.version(), 5u);
    std::vector<bool> in_block(parameters.layout().floats());
    for (const Block& block : parameters.layout().blocks()) {
      std::fill_n(in_block.begin() + block.offset, block.size, true);
    }
    for (size_t i = 0; i < in_block.size(); ++i) {
      EXPECT_TRUE(in_block[i] || parameters.slab().values()[i] == 0) << optimizer.name();
    }
  }
}

TEST(Updater, the_same_gradients_give_the_same_bits) {
  for (const Optimizer& optimizer : all_optimizers({.weight_decay = 0.01, .clip_norm = 2})) {
    std::vector<Parameters> runs;
    for (auto kind : {Slab::Kind::kPrivate, Slab::Kind::kShared}) {
      Parameters& parameters = runs.emplace_back(a_layout(), kind);
      fill(parameters.slab(), 1);
      Updater updater(parameters, optimizer, {.state = kind});
      const Slab gradients = parameters.gradients(kind);
      for (uint32_t step = 0; step < 50; ++step) {
        fill(gradients, step);
        updater.apply(gradients, 0.5);
      }
    }
    EXPECT_TRUE(same_bits(runs[0].slab(), runs[1].slab())) << optimizer.name();
  }
}

TEST(Updater, clips_the_whole_gradient_to_a_norm_after_scaling) {
  Parameters parameters(Layout{{"a", {1}}, {"b", {1}}});
  Updater updater(parameters, Optimizer::sgd(1, {.clip_norm = 2.5}));
  const Slab gradients = parameters.gradients();
  gradients.at("a").as_span<float>()[0] = -6;
  gradients.at("b").as_span<float>()[0] = 8;
  updater.apply(gradients, 0.5);
  EXPECT_NEAR(updater.norm(), 5, 1e-12);
  EXPECT_NEAR(parameters.at("a").as_span<float>()[0], 1.5, 1e-5);
  EXPECT_NEAR(parameters.at("b").as_span<float>()[0], -2, 1e-5);
  gradients.at("a").as_span<float>()[0] = 1;
  gradients.at("b").as_span<float>()[0] = 0;
  parameters.slab().zero();
  updater.apply(gradients, -1);
  EXPECT_EQ(parameters.at("a").as_span<float>()[0], 1) << "a short one is left as it is";
}

TEST(Updater, uses_the_rate_of_its_step) {
  Parameters parameters(Layout{{"a", {}}});
  Updater updater(parameters, Optimizer::sgd(Schedule::steps(1, {1}, 0.5)));
  const Slab gradients = parameters.gradients();
  gradients.at("a").as_span<float>()[0] = -1;
  EXPECT_EQ(updater.lr(), 1);
  updater.apply(gradients);
  EXPECT_EQ(updater.lr(), 0.5);
  updater.apply(gradients);
  EXPECT_EQ(parameters.at("a").as_span<float>()[0], 1.5);
}

TEST(Updater, a_non_finite_gradient_follows_the_policy) {
  const float bad[] = {std::nanf(""), std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity()};
  const char* names[] = {"nan", "inf", "-inf"};
  for (int i = 0; i < 3; ++i) {
    for (auto policy : {NonFinite::kRaise, NonFinite::kSkip, NonFinite::kCount}) {
      Parameters parameters(a_layout());
      fill(parameters.slab(), 1);
      Updater updater(parameters, Optimizer::adam(0.1, {}, {}), {.non_finite = policy});
      Slab gradients = parameters.gradients();
      fill(gradients, 2);
      updater.apply(gradients);
      const Slab before = parameters.gradients(), moment = parameters.gradients();
      before.copy_from(parameters.slab());
      moment.copy_from(updater.state()[0]);
      gradients.at("w").as_span<float>()[5] = bad[i];
      if (policy == NonFinite::kRaise) {
        EXPECT_NE(message_of(Code::kInvalidArgument, [&] { updater.apply(gradients); })
                      .find("block 'w' is " + std::string(names[i]) + " at (1, 2)"),
                  std::string::npos);
      } else {
        EXPECT_EQ(updater.apply(gradients), policy == NonFinite::kCount);
      }
      const bool applied = policy == NonFinite::kCount;
      EXPECT_EQ(updater.step(), applied ? 2u : 1u);
      EXPECT_EQ(parameters.version(), applied ? 2u : 1u);
      EXPECT_EQ(updater.non_finite(), policy == NonFinite::kRaise ? 0u : 1u);
      EXPECT_EQ(updater.skipped(), policy == NonFinite::kSkip ? 1u : 0u);
      EXPECT_EQ(same_bits(before, parameters.slab()), !applied);
      EXPECT_EQ(same_bits(moment, updater.state()[0]), !applied);
    }
  }
}

TEST(Updater, refuses_gradients_of_other_layouts) {
  Parameters parameters(a_layout());
  Updater updater(parameters, Optimizer::sgd(1));
  const Slab other = Slab::make(Layout{{"w", {7, 3}}, {"scalar", {}}, {"b", {4}}});
  EXPECT_NE(message_of(Code::kInvalidArgument, [&] { updater.apply(other); })
                .find("'b' is (3,) here and (4,) there"),
            std::string::npos);
  EXPECT_NE(message_of(Code::kInvalidArgument, [&] { updater.apply(parameters.slab()); })
                .find("themselves"),
            std::string::npos);
  EXPECT_NE(message_of(Code::kInvalidArgument, [&] { updater.apply(parameters.gradients(), NAN); })
                .find("scale"),
            std::string::npos);
  EXPECT_EQ(updater.step(), 0u);
}

TEST(Updater, rows_are_updated_like_blocks_of_their_own) {
  for (const Optimizer& optimizer : all_optimizers({.weight_decay = 0.01, .clip_norm = 3})) {
    // Rows 4, 1 and 4 again, against a block that has just these rows, added up.
    Parameters sparse(a_layout()), dense(Layout{{"w", {2, 3}}});
    fill(sparse.slab(), 1);
    const auto w = sparse.at("w").as_span<float>();
    const std::vector<float> before(w.begin(), w.end());
    std::copy_n(w.data() + 3, 3, dense.at("w").as_span<float>().data());
    std::copy_n(w.data() + 12, 3, dense.at("w").as_span<float>().data() + 3);
    Updater of_rows(sparse, optimizer), of_all(dense, optimizer);
    const int64_t rows[] = {4, 1, 4};
    const float values[] = {1, 2, 3, 4, 5, 6, 0.25, 0.5, 0.75};
    const Slab gradients = dense.gradients();
    const float sums[] = {4, 5, 6, 1.25, 2.5, 3.75};
    std::ranges::copy(sums, gradients.values().data());
    for (int step = 0; step < 3; ++step) {
      EXPECT_TRUE(of_rows.apply_rows("w", rows, values, 0.5));
      EXPECT_TRUE(of_all.apply(gradients, 0.5));
    }
    const auto expected = dense.at("w").as_span<float>();
    for (size_t i = 0; i < 21; ++i) {
      const size_t row = i / 3;
      const float wanted = row == 1 ? expected[i % 3] : row == 4 ? expected[3 + i % 3] : before[i];
      EXPECT_EQ(w[i], wanted) << optimizer.name() << " at " << i;
    }
    EXPECT_EQ(sparse.version(), 3u);
  }
}

TEST(Updater, invalid_rows_are_refused_and_change_nothing) {
  Parameters parameters(a_layout());
  Updater updater(parameters, Optimizer::adam(1, {}, {}), {.non_finite = NonFinite::kRaise});
  const std::vector<float> values(6, 1.0f);
  auto refused = [&](const char* block, std::vector<int64_t> rows, size_t count) {
    return message_of(Code::kInvalidArgument,
                      [&] { updater.apply_rows(block, rows, std::span(values).first(count)); });
  };
  EXPECT_NE(refused("w", {0, 7}, 6).find("block 'w' has 7 rows; there is no row 7"),
            std::string::npos);
  EXPECT_NE(refused("w", {-1, 0}, 6).find("no row -1"), std::string::npos);
  EXPECT_NE(refused("w", {0, 1}, 5).find("2 rows need 6, not 5"), std::string::npos);
  EXPECT_NE(refused("scalar", {0}, 1).find("no rows"), std::string::npos);
  message_of(Code::kNotFound, [&] { updater.apply_rows("v", {}, {}); });
  const std::vector<float> bad = {1, 1, 1, 1, NAN, 1};
  const int64_t rows[] = {5, 2};
  EXPECT_NE(message_of(Code::kInvalidArgument, [&] { updater.apply_rows("w", rows, bad); })
                .find("block 'w' is nan"),
            std::string::npos);
  EXPECT_EQ(updater.step(), 0u);
  EXPECT_TRUE(std::ranges::all_of(parameters.slab().values(), [](float x) { return x == 0; }));
  EXPECT_TRUE(updater.apply_rows("w", {}, {})) << "no rows are an update too";
}

TEST(Updater, threads_apply_one_after_the_other) {
  Parameters parameters(Layout{{"w", {1000}}});
  Updater updater(parameters, Optimizer::sgd(1));
  const Slab gradients = parameters.gradients();
  std::ranges::fill(gradients.at("w").as_span<float>(), -1.0f);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int step = 0; step < 250; ++step) updater.apply(gradients);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(updater.step(), 1000u);
  for (float x : parameters.at("w").as_span<const float>()) EXPECT_EQ(x, 1000);
}

// Several members of a population have their weights and state in one slab.
TEST(Updater, updates_windows_of_a_slab_as_it_updates_slabs) {
  for (const Optimizer& optimizer : all_optimizers()) {
    const Layout layout = a_layout();
    const size_t part = layout.floats();
    const size_t parts = 1 + optimizer.state_slabs();
    const Layout of_whole{{"members", {static_cast<int64_t>(3 * parts * part)}}};
    Slab whole = Slab::make(of_whole);
    std::vector<Slab> windows;
    for (size_t i = 0; i < parts; ++i) {
      windows.push_back(whole.window(layout, (parts + i) * part));
    }
    Updater alone(Parameters(Slab::make(layout)), optimizer);
    fill(alone.parameters().slab(), 1);
    windows[0].copy_from(alone.parameters().slab());
    for (size_t i = 1; i < parts; ++i) windows[i].copy_from(alone.state()[i - 1]);
    Updater member(Parameters(windows[0]), optimizer, NonFinite::kRaise,
                   {windows.begin() + 1, windows.end()});

    Slab gradients = Slab::make(layout);
    for (uint32_t step = 0; step < 3; ++step) {
      fill(gradients, 10 + step);
      EXPECT_TRUE(alone.apply(gradients));
      EXPECT_TRUE(member.apply(gradients));
    }
    EXPECT_EQ(member.step(), 3u);
    EXPECT_TRUE(same_bits(windows[0], alone.parameters().slab())) << optimizer.name();
    for (size_t i = 1; i < parts; ++i) {
      EXPECT_TRUE(same_bits(windows[i], alone.state()[i - 1])) << optimizer.name();
    }
    const auto is_zero = [](float f) { return f == 0; };
    const auto floats = whole.values();
    EXPECT_TRUE(std::all_of(floats.begin(), floats.begin() + parts * part, is_zero));
    EXPECT_TRUE(std::all_of(floats.end() - parts * part, floats.end(), is_zero));
  }
}

TEST(Updater, a_state_of_another_formula_or_layout_is_refused) {
  const Optimizer adam = Optimizer::adam(1e-3, {}, {});
  const Parameters parameters(Slab::make(a_layout()));
  const Slab other = Slab::make(Layout{{"w", {2}}});
  const Slab equal = Slab::make(a_layout());
  EXPECT_NE(message_of(Code::kInvalidArgument,
                       [&] { Updater(parameters, adam, NonFinite::kRaise, {equal}); })
                .find("adam has 2 state slabs; 1 were given"),
            std::string::npos);
  message_of(Code::kInvalidArgument, [&] {
    Updater(parameters, adam, NonFinite::kRaise, {equal, other});
  });
}

}  // namespace
}  // namespace penstock::train
