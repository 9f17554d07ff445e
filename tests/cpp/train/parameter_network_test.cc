#include <random>
#include <string>
#include <thread>

#include "tests/cpp/net/proxy.h"
#include "tests/cpp/train/serving.h"

// Workers and shards with a faulty network between them. All gradients are ones and the learning
// rate is 1, so the weights count the applied pushes.
namespace penstock::train {
namespace {

using net::testing::Fault;
using net::testing::Proxy;

constexpr size_t kShards = 2, kPushers = 2, kPushesOfEach = 30;

// Each connection is cut after some thousand bytes, in either direction: in handshakes, heads and
// bodies; between a push and its answer, too.
std::vector<Fault> cuts(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Fault> plan;
  for (size_t i = 0; i < 24; ++i) {
    const bool from_client = random() % 2 == 0;
    // Answers are small, except those to pulls.
    plan.push_back({Fault::kCut, 1 + random() % (i % 3 == 0 ? 300 : 20'000), from_client});
  }
  return plan;
}

struct Pushing {
  bool encrypt, rows, with_pull;  // with_pull: push_pull()
};
class ParameterNetwork : public ::testing::TestWithParam<Pushing> {};

TEST_P(ParameterNetwork, every_push_counts_once_however_often_lines_are_cut) {
  const auto [encrypt, of_rows, with_pull] = GetParam();
  const Parameters parameters(Layout{{"w", {900}}, {"b", {7}}});
  ParameterServer server(parameters, Optimizer::sgd(1.0),
                         {.shards = kShards,
                          .listen = {"tcp://127.0.0.1:0"},
                          .secret = "a secret of tests",
                          .encrypt = encrypt});
  std::vector<std::unique_ptr<Proxy>> proxies;
  std::vector<std::string> addresses;
  for (size_t i = 0; i < kShards; ++i) {
    proxies.push_back(
        std::make_unique<Proxy>(server.addresses()[i], cuts(static_cast<uint32_t>(i))));
    addresses.push_back(proxies.back()->address());
  }
  std::vector<std::thread> workers;
  for (size_t i = 0; i < kPushers; ++i) {
    workers.emplace_back([&, encrypt = encrypt, of_rows = of_rows, with_pull = with_pull] {
      ParameterClient client(addresses, {.secret = "a secret of tests", .encrypt = encrypt});
      std::vector<int64_t> every_second;
      for (int64_t row = 0; row < 900; row += 2) every_second.push_back(row);
      const std::vector<float> steps(every_second.size(), -1.0f);
      const GradientPart some{"w", steps, true, every_second};
      const Slab gradient = Slab::make(client.layout()), weights = Slab::make(client.layout());
      std::ranges::fill(gradient.values(), -1.0f);
      for (size_t round = 0; round < kPushesOfEach; ++round) {
        if (with_pull) {
          EXPECT_TRUE((of_rows ? client.push_pull({&some, 1}, weights)
                               : client.push_pull(gradient, weights))
                          .applied);
        } else {
          EXPECT_TRUE((of_rows ? client.push({&some, 1}) : client.push(gradient)).applied);
          client.pull(weights);
        }
        // Never older than this worker's own pushes.
        EXPECT_GE(*std::ranges::min_element(weights.values()), 0.0f);
        EXPECT_GE(weights.values_of(weights.layout().at("w"))[0], static_cast<float>(round + 1));
      }
    });
  }
  for (auto& worker : workers) worker.join();
  const Slab now = Slab::make(parameters.layout());
  for (const uint64_t version : server.read(now)) EXPECT_EQ(version, kPushers * kPushesOfEach);
  for (const char* block : {"w", "b"}) {
    const auto values = now.values_of(now.layout().at(block));
    for (size_t row = 0; row < values.size(); ++row) {
      const bool pushed = !of_rows || (*block == 'w' && row % 2 == 0);
      ASSERT_EQ(values[row], pushed ? static_cast<float>(kPushers * kPushesOfEach) : 0)
          << block << row;
    }
  }
  for (const auto& proxy : proxies) EXPECT_GT(proxy->faults(), 5u);
}

INSTANTIATE_TEST_SUITE_P(Pushes, ParameterNetwork,
                         ::testing::Values(Pushing{false, false, false},
                                           Pushing{false, true, false}, Pushing{true, false, false},
                                           Pushing{false, false, true}, Pushing{false, true, true},
                                           Pushing{true, false, true}),
                         [](const auto& of) {
                           return std::string(of.param.rows ? "of_rows" : "whole") +
                                  (of.param.encrypt ? "_encrypted" : "") +
                                  (of.param.with_pull ? "_with_pull" : "");
                         });

TEST(ParameterLines, a_slow_connection_affects_no_other) {
  const Parameters parameters(Layout{{"w", {900}}});
  ParameterServer server(parameters, Optimizer::sgd(1.0), {.listen = {"tcp://127.0.0.1:0"}});
  Proxy proxy(server.addresses()[0],
              {{Fault::kTrickle, 1500, true}, {Fault::kTrickle, 1500, false}});
  std::vector<std::thread> workers;
  for (const std::string& address : {proxy.address(), proxy.address(), server.addresses()[0]}) {
    workers.emplace_back([&, address] {
      ParameterClient client({address}, {});
      const Slab gradient = Slab::make(client.layout());
      std::ranges::fill(gradient.values(), -1.0f);
      for (size_t round = 0; round < 5; ++round) EXPECT_TRUE(client.push(gradient).applied);
      client.pull(gradient);
    });
  }
  for (auto& worker : workers) worker.join();
  const Slab now = Slab::make(parameters.layout());
  EXPECT_EQ(server.read(now)[0], 15u);
  EXPECT_EQ(now.values()[0], 15.0f);
  EXPECT_EQ(proxy.faults(), 2u);
}

}  // namespace
}  // namespace penstock::train
