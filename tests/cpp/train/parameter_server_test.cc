#include "penstock/train/server/parameter_server.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "penstock/base/clock.h"
#include "penstock/net/connection.h"
#include "tests/cpp/train/refusals.h"
#include "tests/cpp/train/serving.h"

// Clients and servers in one process, over both transports.
namespace penstock::train {
namespace {

using testing::kLocal;
using testing::kTcp;
using testing::message_of;

Layout some_blocks() { return Layout{{"w", {300, 500}}, {"b", {5}}, {"v", {70'000}}}; }

struct World {
  explicit World(const std::string& listen = kLocal, ServerMode mode = {},
                 Optimizer optimizer = Optimizer::sgd(1.0), uint32_t copies = 1)
      : parameters(some_blocks()),
        server(parameters, optimizer,
               {.shards = 3, .mode = mode, .listen = {listen}, .copies = copies}) {}

  // Over TCP a thread for each shard.
  ClientOptions quick(Encoding encoding = Encoding::kFloat32) {
    return {.retry_s = 30, .encoding = encoding, .bytes_a_thread = 1};
  }
  float weight(const char* block = "w", size_t at = 0) {
    const Slab now = Slab::make(parameters.layout());
    server.read(now);
    return now.values_of(now.layout().at(block))[at];
  }

  Parameters parameters;
  ParameterServer server;
};

class Transports : public ::testing::TestWithParam<const char*> {};

TEST_P(Transports, pushes_of_several_workers_add_up) {
  World world(GetParam());
  constexpr int kPushes = 20;
  std::vector<std::thread> workers;
  for (int i = 0; i < 3; ++i) {
    workers.emplace_back([&, i] {
      ParameterClient client(world.server.addresses(), world.quick());
      EXPECT_EQ(client.local(), std::string(GetParam()) == kLocal);
      const Slab weights = Slab::make(client.layout());
      const Slab gradient =
          Slab::make(client.layout(), i == 0 ? Slab::Kind::kPrivate : Slab::Kind::kShared);
      std::ranges::fill(gradient.values(), -1.0f);
      for (int round = 0; round < kPushes; ++round) {
        const auto before = client.pull(weights);
        const auto pushed = client.push(gradient);
        ASSERT_TRUE(pushed.applied);
        for (size_t shard = 0; shard < 3; ++shard) EXPECT_GT(pushed.versions[shard], before[shard]);
      }
    });
  }
  for (auto& worker : workers) worker.join();
  const Slab now = Slab::make(world.parameters.layout());
  for (const uint64_t version : world.server.read(now)) EXPECT_EQ(version, 3u * kPushes);
  EXPECT_TRUE(std::ranges::all_of(now.values(), [](float value) { return value == 3 * kPushes; }));
  const auto stats = nlohmann::json::parse(world.server.stats());
  ASSERT_EQ(stats.size(), 3u);
  EXPECT_EQ(stats[0]["pushes"], 3 * kPushes);
  EXPECT_EQ(stats[0]["pulls"], 3 * kPushes);
  uint64_t counted = 0;
  for (const auto& bin : stats[0]["staleness"]) counted += bin.get<uint64_t>();
  EXPECT_EQ(counted, 3u * kPushes);
}

TEST_P(Transports, half_precision_and_the_largest_arrive_as_they_were_rounded) {
  for (const Encoding encoding : {Encoding::kFloat16, Encoding::kBfloat16, Encoding::kTopK}) {
    World world(GetParam());
    ClientOptions options = world.quick(encoding);
    options.top_k = 0.1;
    ParameterClient client(world.server.addresses(), options);
    const Slab gradient = Slab::make(client.layout());
    const auto values = gradient.values();
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = encoding == Encoding::kTopK ? (i % 10 == 0 ? -2.0f : -0.001f) : -1.5f;
    }
    client.push(gradient);
    const Slab now = Slab::make(client.layout());
    client.pull(now);
    const auto got = now.values();
    for (size_t i = 1000; i < 3000; ++i) {
      const float expected = encoding != Encoding::kTopK ? 1.5f : i % 10 == 0 ? 2.0f : 0.0f;
      ASSERT_EQ(got[i], expected) << i;
    }
    if (encoding != Encoding::kTopK) continue;
    // The rest is sent later, so no part of the sum is lost.
    gradient.zero();
    for (int round = 0; round < 15; ++round) client.push(gradient);
    client.pull(now);
    EXPECT_EQ(got[1], 0.001f);
    EXPECT_EQ(got[got.size() - 2], 0.001f);
  }
}

TEST_P(Transports, delay_compensation_uses_the_pulled_weights) {
  World world(GetParam(), {.compensation = 0.5});
  ParameterClient slow(world.server.addresses(), world.quick());
  ParameterClient fast(world.server.addresses(), world.quick());
  const Slab weights = Slab::make(slow.layout()), gradient = Slab::make(slow.layout());
  message_of(Code::kInvalidArgument, [&] { slow.push(gradient); });
  slow.pull(weights);  // 0
  fast.pull(weights);
  std::ranges::fill(gradient.values(), -4.0f);
  fast.push(gradient);  // w = 4
  std::ranges::fill(gradient.values(), 2.0f);
  slow.push(gradient);  // g + 0.5 g^2 (4 - 0) = 10
  EXPECT_EQ(world.weight(), -6);
  EXPECT_EQ(world.weight("v", 69'999), -6);
}

TEST_P(Transports, a_push_with_a_pull_has_its_own_push_in_the_weights) {
  World world(GetParam());
  ParameterClient client(world.server.addresses(), world.quick());
  const Slab weights = Slab::make(client.layout()), gradient = Slab::make(client.layout());
  std::ranges::fill(gradient.values(), -1.0f);
  for (uint64_t round = 1; round <= 5; ++round) {
    const auto pushed = client.push_pull(gradient, weights);
    EXPECT_TRUE(pushed.applied);
    EXPECT_EQ(pushed.versions, std::vector<uint64_t>(3, round));
    EXPECT_TRUE(std::ranges::all_of(
        weights.values(), [&](float value) { return value == static_cast<float>(round); }));
  }
  const float step = -1;
  const int64_t row = 69'999;
  const GradientPart last{"v", {&step, 1}, true, {&row, 1}};
  client.push_pull({&last, 1}, weights);
  EXPECT_EQ(weights.values_of(weights.layout().at("v"))[69'999], 6);
  EXPECT_EQ(weights.values_of(weights.layout().at("w"))[0], 5);
  const auto stats = nlohmann::json::parse(world.server.stats());
  EXPECT_EQ(stats[0]["pulls"], client.local() ? 5 : 6);  // a push counts the local pulls before it
  message_of(Code::kInvalidArgument, [&] { client.push_pull(gradient, gradient); });
  const Slab shared = Slab::make(client.layout(), Slab::Kind::kShared);
  const Slab again = Slab::open(shared.fd(), client.layout());
  message_of(Code::kInvalidArgument, [&] { client.push_pull(shared, again); });
  const GradientPart own{"b", weights.values_of(weights.layout().at("b"))};
  message_of(Code::kInvalidArgument, [&] { client.push_pull({&own, 1}, weights); });
  EXPECT_EQ(client.sequence(), 6u);
}

TEST_P(Transports, a_push_with_a_pull_waits_for_the_others_in_synchronous_mode) {
  World world(GetParam(), {.staleness = 0, .workers = 2});
  std::vector<std::thread> workers;
  for (int i = 0; i < 2; ++i) {
    workers.emplace_back([&, i] {
      ParameterClient client(world.server.addresses(), world.quick());
      const Slab weights = Slab::make(client.layout()), gradient = Slab::make(client.layout());
      std::ranges::fill(gradient.values(), i == 0 ? -1.0f : -3.0f);
      for (int round = 1; round <= 10; ++round) {
        EXPECT_TRUE(client.push_pull(gradient, weights).applied);
        const float mean = static_cast<float>(2 * round);
        EXPECT_TRUE(
            std::ranges::all_of(weights.values(), [&](float value) { return value == mean; }));
      }
    });
  }
  for (auto& worker : workers) worker.join();
}

TEST_P(Transports, an_exception_of_the_caller_ends_a_push_that_is_held) {
  World world(GetParam(), {.staleness = 0, .workers = 2});
  struct Enough {};
  std::atomic<bool> throws{false};
  ClientOptions options = world.quick();
  const auto caller = std::this_thread::get_id();
  options.while_waiting = [&] {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    if (throws) throw Enough();
  };
  ParameterClient first(world.server.addresses(), options);
  ParameterClient second(world.server.addresses(), world.quick());
  const Slab weights = Slab::make(first.layout()), gradient = Slab::make(first.layout());
  std::ranges::fill(gradient.values(), -100.0f);
  throws = true;
  EXPECT_THROW(first.push_pull(gradient, weights), Enough);
  throws = false;
  // The shards have dropped that push, and wait for another.
  std::ranges::fill(gradient.values(), -1.0f);
  auto other = std::async(std::launch::async, [&] { return second.push(gradient).applied; });
  EXPECT_TRUE(first.push_pull(gradient, weights).applied);
  EXPECT_TRUE(other.get());
  EXPECT_EQ(weights.values()[0], 1);
  EXPECT_EQ(world.weight("v", 69'999), 1);
}

TEST_P(Transports, close_ends_a_push_of_another_thread_that_is_held) {
  World world(GetParam(), {.staleness = 0, .workers = 2});
  ParameterClient first(world.server.addresses(), world.quick());
  ParameterClient second(world.server.addresses(), world.quick());
  const Slab gradient = Slab::make(first.layout());
  std::ranges::fill(gradient.values(), -100.0f);
  auto held = std::async(std::launch::async,
                         [&] { return message_of(Code::kClosed, [&] { first.push(gradient); }); });
  while (first.sequence() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  first.close();
  EXPECT_NE(held.get().find("closed"), std::string::npos);
  message_of(Code::kClosed, [&] { first.push(gradient); });
  // The shards have dropped that push.
  const Slab weights = Slab::make(second.layout());
  second.pull(weights);
  EXPECT_EQ(weights.values()[0], 0);
}

TEST_P(Transports, delay_compensation_uses_the_weights_of_a_push_with_a_pull) {
  World world(GetParam(), {.compensation = 0.5});
  ParameterClient slow(world.server.addresses(), world.quick());
  ParameterClient fast(world.server.addresses(), world.quick());
  const Slab weights = Slab::make(slow.layout()), gradient = Slab::make(slow.layout());
  slow.pull(weights);
  fast.pull(weights);
  slow.push_pull(gradient, weights);  // 0
  std::ranges::fill(gradient.values(), -4.0f);
  fast.push_pull(gradient, weights);  // w = 4
  EXPECT_EQ(weights.values()[0], 4);
  std::ranges::fill(gradient.values(), 2.0f);
  slow.push_pull(gradient, weights);  // g + 0.5 g^2 (4 - 0) = 10
  EXPECT_EQ(weights.values()[0], -6);
  slow.push(gradient);  // no delay: 2
  EXPECT_EQ(world.weight(), -8);
}

TEST_P(Transports, clipping_by_norm_is_over_all_shards) {
  World world(GetParam(), {}, Optimizer::sgd(1.0, {.clip_norm = 1}));
  ParameterClient client(world.server.addresses(), world.quick());
  Parameters parameters(some_blocks());
  Updater updater(parameters, Optimizer::sgd(1.0, {.clip_norm = 1}));
  const Slab gradient = Slab::make(client.layout());
  for (const Block& block : gradient.layout().blocks()) {
    std::ranges::fill(gradient.values_of(block), static_cast<float>(block.size));
  }
  client.push(gradient);
  updater.apply(gradient);
  const Slab now = Slab::make(client.layout());
  client.pull(now);
  EXPECT_TRUE(std::ranges::equal(now.values(), parameters.slab().values()));
}

TEST_P(Transports, a_worker_that_leaves_before_the_first_step_is_not_waited_for) {
  for (const bool pulls : {false, true}) {
    World world(GetParam(), {.workers = 2});
    ParameterClient stays(world.server.addresses(), world.quick());
    const Slab gradient = Slab::make(stays.layout());
    std::ranges::fill(gradient.values(), -1.0f);
    {
      ParameterClient leaves(world.server.addresses(), world.quick());
      if (pulls) leaves.pull(Slab::make(leaves.layout()));
    }
    auto pushing = std::async(std::launch::async, [&] { return stays.push(gradient).applied; });
    EXPECT_EQ(pushing.wait_for(std::chrono::seconds(30)), std::future_status::ready);
    world.server.close();  // a push that waits for ever fails
    EXPECT_TRUE(pushing.get());
  }
}

TEST_P(Transports, a_connect_that_fails_does_not_begin_the_work) {
  World world(GetParam(), {.workers = 2});
  const auto all = world.server.addresses();
  ParameterClient one(all, world.quick());
  const Slab gradient = Slab::make(one.layout());
  std::ranges::fill(gradient.values(), -1.0f);
  auto pushing = std::async(std::launch::async, [&] { return one.push(gradient).applied; });
  const auto waiting = [&] {
    return std::ranges::count_if(nlohmann::json::parse(world.server.stats()),
                                 [](const auto& shard) { return shard["workers"][0]["waiting"]; });
  };
  while (waiting() < 3) std::this_thread::yield();
  message_of(Code::kInvalidArgument, [&] { ParameterClient({all[0], all[2]}, world.quick()); });
  EXPECT_EQ(pushing.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  for (const char* block : {"w", "v"}) EXPECT_EQ(world.weight(block), 0);
  ParameterClient two(all, world.quick());
  EXPECT_TRUE(pushing.get());
  for (const char* block : {"w", "v"}) EXPECT_EQ(world.weight(block), 1);
}
INSTANTIATE_TEST_SUITE_P(Over, Transports, ::testing::Values(kLocal, kTcp));

TEST(ParameterServer, a_non_finite_gradient_is_named_and_not_sent) {
  World world;
  ParameterClient client(world.server.addresses(), world.quick());
  const Slab gradient = Slab::make(client.layout());
  gradient.values_of(client.layout().at("w"))[501] = NAN;
  const std::string said = message_of(Code::kInvalidArgument, [&] { client.push(gradient); });
  EXPECT_NE(said.find("block 'w' is nan at (1, 1)"), std::string::npos) << said;
  gradient.zero();
  EXPECT_TRUE(client.push(gradient).applied);
}

TEST(ParameterServer, addresses_must_be_all_of_one_server) {
  World world, other;
  auto some = world.server.addresses();
  const auto foreign = other.server.addresses();
  message_of(Code::kInvalidArgument, [&] { ParameterClient({some[0], some[2]}, world.quick()); });
  message_of(Code::kInvalidArgument, [&] { ParameterClient({some[0], some[1]}, world.quick()); });
  message_of(Code::kInvalidArgument, [&] {
    ParameterClient({some[0], some[1], some[1], some[2]}, world.quick());
  });
  message_of(Code::kInvalidArgument, [&] {
    ParameterClient({some[0], some[1], foreign[2]}, world.quick());
  });
  std::ranges::reverse(some);
  ParameterClient client(some, world.quick());
  EXPECT_EQ(client.shards(), 3u);
  const Slab wrong = Slab::make(Layout{{"w", {3}}});
  message_of(Code::kInvalidArgument, [&] { client.pull(wrong); });
  message_of(Code::kInvalidArgument, [&] { client.push(wrong); });
}

TEST(ParameterServer, a_shard_that_is_unreachable_for_long_is_a_timeout) {
  World world;
  ClientOptions brief = world.quick();
  brief.retry_s = 0.2;
  ParameterClient client(world.server.addresses(), brief);
  world.server.close();
  const Slab gradient = Slab::make(client.layout());
  message_of(Code::kTimeout, [&] { client.push(gradient); });
  message_of(Code::kTimeout, [&] { ParameterClient(world.server.addresses(), brief); });
}

TEST(ParameterServer, invalid_messages_are_refused_and_affect_no_other) {
  World world(kTcp);
  ParameterClient client(world.server.addresses(), world.quick());
  auto bytes_of = [](auto... parts) {
    std::vector<std::byte> head;
    (wire::append(head, parts), ...);
    return head;
  };
  const wire::AskHead hello{.ask = wire::Ask::kHello}, push{.ask = wire::Ask::kPush};
  const std::vector<std::vector<std::byte>> heads = {
      {},
      bytes_of(uint32_t{1}),
      bytes_of(uint64_t{0}),
      bytes_of(wire::AskHead{.ask = static_cast<wire::Ask>(99)}),
      bytes_of(hello),
      bytes_of(hello, wire::HelloHead{.worker = 5, .name_bytes = 100'000}),
      bytes_of(hello, wire::HelloHead{.worker = 0}),
      bytes_of(push, wire::PushHead{.sequence = 1}),
      bytes_of(wire::AskHead{.ask = wire::Ask::kPull}),
      bytes_of(wire::AskHead{.ask = wire::Ask::kStats}, uint32_t{1}),
      bytes_of(wire::AskHead{.ask = wire::Ask::kSlab}, wire::SlabHead{1}),
  };
  const std::string& address = world.server.addresses()[0];
  for (const auto& head : heads) {
    const auto line = net::connect(address);
    line->send(head);
    const auto answer = line->receive(60);
    ASSERT_TRUE(answer);
    ByteReader reader = wire::reader(answer->head, "test");
    EXPECT_NE(reader.get<wire::AnswerHead>().status, wire::AnswerHead::kOk);
  }
  // After hello: gradients of wrong sizes and encodings, and a body larger than any push has.
  const size_t floats = partition(client.layout(), 3)[0].size();
  for (const auto& [encoding, bytes] :
       std::vector<std::pair<uint32_t, size_t>>{{0, 4 * floats - 4},
                                                {0, 4 * floats + 4},
                                                {1, 4 * floats},
                                                {9, 4 * floats},
                                                {3, 12},
                                                {0, 12 * floats + 100}}) {
    const auto line = net::connect(address);
    line->send(bytes_of(hello, wire::HelloHead{.worker = 5}));
    ASSERT_TRUE(line->receive(60));
    const std::vector<std::byte> body(bytes);
    const std::span<const std::byte> part = body;
    const uint32_t refused = [&] {
      try {
        line->send(bytes_of(push, wire::PushHead{.sequence = 1, .encoding = encoding}),
                   std::span(&part, 1));
        const auto answer = line->receive(60);
        if (!answer) return 1u;
        return wire::reader(answer->head, "test").get<wire::AnswerHead>().status;
      } catch (const Error&) {
        return 1u;  // cut off
      }
    }();
    EXPECT_NE(refused, wire::AnswerHead::kOk) << encoding << " " << bytes;
  }
  // Pairs whose indices are out of range, or do not ascend.
  for (const std::vector<uint32_t>& indices :
       std::vector<std::vector<uint32_t>>{{0, 0}, {7, 3}, {static_cast<uint32_t>(floats)}}) {
    std::vector<std::byte> body;
    for (uint32_t index : indices) {
      wire::append(body, index);
      wire::append(body, 1.0f);
    }
    message_of(Code::kDataLoss, [&] { Gradient(Encoding::kTopK, body, floats); });
  }
  EXPECT_EQ(world.weight(), 0);
  const Slab gradient = Slab::make(client.layout());
  std::ranges::fill(gradient.values(), -1.0f);
  EXPECT_TRUE(client.push(gradient).applied);
  EXPECT_EQ(world.weight(), 1);
}

TEST(Gradient, indices_of_32_bits_are_not_used_beyond_their_reach) {
  constexpr uint64_t kReach = uint64_t{1} << 32;
  for (const Encoding encoding : {Encoding::kTopK, Encoding::kRuns}) {
    EXPECT_NO_THROW(require_reach(encoding, kReach - 1));
    const std::string why =
        message_of(Code::kInvalidArgument, [&] { require_reach(encoding, kReach); });
    EXPECT_NE(why.find("more shards"), std::string::npos) << why;
  }
  EXPECT_NO_THROW(require_reach(Encoding::kFloat32, 2 * kReach));
}

TEST(ParameterServer, ports_of_shards_follow_one_another) {
  ServerOptions options{.shards = 3};
  options.listen = {"tcp://127.0.0.1:7000"};
  EXPECT_EQ(listen_addresses(options)[2], "tcp://127.0.0.1:7002");
  options.listen = {"tcp://127.0.0.1:0"};
  EXPECT_EQ(listen_addresses(options)[2], "tcp://127.0.0.1:0");
  options.listen = {"unix:@x"};
  EXPECT_EQ(listen_addresses(options)[1], "unix:@x-1");
  options.listen = {"unix:@x", "unix:@y"};
  message_of(Code::kInvalidArgument, [&] { listen_addresses(options); });
}

}  // namespace
}  // namespace penstock::train
