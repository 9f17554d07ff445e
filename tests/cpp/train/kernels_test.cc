#include "penstock/train/kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace penstock::train::kernels {
namespace {

constexpr Formula kAll[] = {Formula::kSgd,     Formula::kMomentum, Formula::kNesterov,
                            Formula::kAdagrad, Formula::kRmsProp,  Formula::kCenteredRmsProp,
                            Formula::kAdam};

// Weights, gradients and both states, made up.
struct Weights {
  explicit Weights(size_t n) : weights(n), gradients(n), state0(n), state1(n) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (auto* values : {&weights, &gradients}) {
      for (float& x : *values) x = normal(random);
    }
    for (auto* values : {&state0, &state1}) {
      for (float& x : *values) x = std::abs(normal(random)) + 1.0f;
    }
  }
  void update(const Pass& pass, size_t begin, size_t end) {
    kernels::update(pass, weights.data() + begin, gradients.data() + begin, state0.data() + begin,
                    state1.data() + begin, end - begin);
  }
  bool same_bits(const Weights& other) const {
    auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    return same(weights, other.weights) && same(state0, other.state0) && same(state1, other.state1);
  }
  std::vector<float> weights, gradients, state0, state1;
};

Pass some_pass(Formula formula) {
  return {.formula = formula,
          .scale = 0.7f,
          .clip = 1.3f,
          .decay = 0.01f,
          .keep = 0.999f,
          .rate = 0.013f,
          .memory = 0.9f,
          .fresh = 0.1f,
          .memory2 = 0.99f,
          .fresh2 = 0.01f,
          .root = 1.7f,
          .eps = 1e-3f};
}

class Kernels : public ::testing::Test {
 protected:
  void TearDown() override { use_instruction_set(instruction_sets() - 1); }
};

TEST_F(Kernels, every_instruction_set_gives_the_same_bits) {
  for (Formula formula : kAll) {
    Weights first(1003);
    use_instruction_set(0);
    for (int i = 0; i < 5; ++i) first.update(some_pass(formula), 0, 1003);
    for (size_t set = 1; set < instruction_sets(); ++set) {
      Weights other(1003);
      use_instruction_set(set);
      for (int i = 0; i < 5; ++i) other.update(some_pass(formula), 0, 1003);
      EXPECT_TRUE(first.same_bits(other)) << "formula " << static_cast<int>(formula);
    }
  }
}

TEST_F(Kernels, any_partition_into_ranges_gives_the_same_bits) {
  std::mt19937 random(3);
  for (Formula formula : kAll) {
    Weights whole(517), parts(517);
    whole.update(some_pass(formula), 0, 517);
    for (size_t at = 0; at < 517;) {
      const size_t end = std::min<size_t>(517, at + random() % 40);
      parts.update(some_pass(formula), at, end);
      at = end;
    }
    EXPECT_TRUE(whole.same_bits(parts)) << "formula " << static_cast<int>(formula);
  }
}

TEST_F(Kernels, formulas_are_those_of_the_comments_in_doubles) {
  const Pass p = some_pass(Formula::kSgd);
  for (Formula formula : kAll) {
    Weights run(300);
    const Weights before = run;
    run.update(some_pass(formula), 0, 300);
    for (size_t i = 0; i < 300; ++i) {
      double w = before.weights[i], a = before.state0[i], b = before.state1[i];
      const double g = std::clamp<double>(before.gradients[i] * double{p.scale}, -p.clip, p.clip) +
                       double{p.decay} * w;
      switch (formula) {
        case Formula::kSgd:
          w -= p.rate * g;
          break;
        case Formula::kMomentum:
          a = p.memory * a + g;
          w -= p.rate * a;
          break;
        case Formula::kNesterov:
          a = p.memory * a + g;
          w -= p.rate * (g + p.memory * a);
          break;
        case Formula::kAdagrad:
          a += g * g;
          w -= p.rate * g / (std::sqrt(a) + p.eps);
          break;
        case Formula::kRmsProp:
          a = p.memory * a + p.fresh * g * g;
          w -= p.rate * g / (std::sqrt(a) + p.eps);
          break;
        case Formula::kCenteredRmsProp:
          a = p.memory * a + p.fresh * g * g;
          b = (1 - p.fresh) * b + p.fresh * g;
          w -= p.rate * g / (std::sqrt(std::max(0.0, a - b * b)) + p.eps);
          break;
        case Formula::kAdam:
          a = (1 - p.fresh) * a + p.fresh * g;
          b = p.memory2 * b + p.fresh2 * g * g;
          w = w * p.keep - p.rate * a / (std::sqrt(b) * p.root + p.eps);
          break;
      }
      // The centered form divides by a difference that may be small, so it is less precise.
      const double sharp = formula == Formula::kCenteredRmsProp ? 2e-4 : 2e-6;
      ASSERT_NEAR(run.weights[i], w, sharp) << static_cast<int>(formula) << " at " << i;
      ASSERT_NEAR(run.state0[i], a, 2e-6) << static_cast<int>(formula) << " at " << i;
      ASSERT_NEAR(run.state1[i], b, 2e-6) << static_cast<int>(formula) << " at " << i;
    }
  }
}

TEST_F(Kernels, nan_stays_nan_and_infinity_is_clipped) {
  Pass pass;
  pass.clip = 2;
  pass.rate = 1;
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> weights(9, 1.0f), gradients = {NAN, infinity, -infinity, 5, -5, 1, 0, 2, NAN};
  for (size_t set = 0; set < instruction_sets(); ++set) {
    use_instruction_set(set);
    std::vector<float> w = weights;
    update(pass, w.data(), gradients.data(), nullptr, nullptr, w.size());
    EXPECT_TRUE(std::isnan(w[0]) && std::isnan(w[8]));
    EXPECT_EQ(std::vector<float>(w.begin() + 1, w.end() - 1),
              (std::vector<float>{-1, 3, -1, 3, 0, 1, -1}));
  }
}

// A variance that is negative because of rounding counts as zero.
TEST_F(Kernels, a_constant_gradient_does_not_break_the_centered_form) {
  Pass pass = some_pass(Formula::kCenteredRmsProp);
  pass.decay = 0;
  std::vector<float> w(64, 0.0f), g(64), square(64, 0.0f), mean(64, 0.0f);
  for (size_t i = 0; i < g.size(); ++i) g[i] = 0.1f + 0.01f * static_cast<float>(i);
  for (int step = 0; step < 2000; ++step) {
    update(pass, w.data(), g.data(), square.data(), mean.data(), w.size());
  }
  for (float x : w) EXPECT_TRUE(std::isfinite(x));
}

TEST_F(Kernels, the_sum_of_squares_has_one_order) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> values(3 * kPiece + 77);
  for (float& x : values) x = normal(random) * 1e3f;
  double plain = 0;
  for (float x : values) plain += double{x} * x;
  use_instruction_set(0);
  const double sum = sum_of_squares(values);
  EXPECT_NEAR(sum / plain, 1, 1e-12);
  for (size_t set = 1; set < instruction_sets(); ++set) {
    use_instruction_set(set);
    EXPECT_EQ(std::bit_cast<uint64_t>(sum_of_squares(values)), std::bit_cast<uint64_t>(sum));
  }
  // The sum of separately computed pieces is the same.
  double pieces = 0;
  for (size_t at = 0; at < values.size(); at += kPiece) {
    const size_t n = std::min(kPiece, values.size() - at);
    pieces += sum_of_squares(std::span(values).subspan(at, n));
  }
  EXPECT_EQ(pieces, sum);
  EXPECT_EQ(sum_of_squares({}), 0);
}

TEST_F(Kernels, the_sum_of_squares_is_finite_if_all_values_are_and_finite_says_whether) {
  const float largest = std::numeric_limits<float>::max();
  std::vector<float> values(2 * kPiece, largest);
  EXPECT_TRUE(std::isfinite(sum_of_squares(values)));
  EXPECT_TRUE(finite({}));
  for (size_t at : {size_t{0}, size_t{17}, kPiece - 1, kPiece, values.size() - 1}) {
    for (float bad :
         {NAN, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
      values[at] = bad;
      EXPECT_FALSE(std::isfinite(sum_of_squares(values))) << at;
      for (size_t set = 0; set < instruction_sets(); ++set) {
        use_instruction_set(set);
        EXPECT_FALSE(finite(values)) << at;
        EXPECT_FALSE(finite(std::span(values).subspan(at, 1)));
        EXPECT_TRUE(finite(std::span(values).first(at)));
        EXPECT_TRUE(finite(std::span(values).subspan(at + 1)));
      }
    }
    values[at] = -largest;
  }
}

}  // namespace
}  // namespace penstock::train::kernels
