#include <poll.h>
#include <signal.h>

#include <array>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/net/listener.h"
#include "penstock/train/server/shard_link.h"
#include "tests/cpp/memory/child.h"
#include "tests/cpp/train/publishing.h"
#include "tests/cpp/train/refusals.h"
#include "tests/cpp/train/serving.h"

// Stopped shards: their sockets accept data, but nothing answers.
namespace penstock::train {
namespace {

using penstock::testing::Gate;
using penstock::testing::kill_child;
using penstock::testing::start_child;
using testing::eventually;
using testing::kLocal;
using testing::kTcp;
using testing::message_of;

Layout of_some() { return Layout{{"w", {3000}}}; }

constexpr size_t kSilentShards = 3;

// A server in another process, started while this process has one thread.
class ServingChild {
  using Address = std::array<char, 64>;

 public:
  explicit ServingChild(const char* listen, const ServerMode& mode = {}) {
    pid_ = start_child([&] {
      ParameterServer server(Parameters(of_some()), Optimizer::sgd(1.0),
                             {.shards = kSilentShards, .mode = mode, .listen = {listen}});
      for (const std::string& each : server.addresses()) {
        Address address{};
        std::ranges::copy(each, address.begin());
        told_.send(address);
      }
      for (;;) pause();
      return true;
    });
    for (size_t i = 0; i < kSilentShards; ++i) {
      Address address{};
      EXPECT_TRUE(told_.receive(address));
      addresses_.emplace_back(address.data());
    }
  }
  ~ServingChild() { kill_child(pid_); }
  ServingChild(const ServingChild&) = delete;
  ServingChild& operator=(const ServingChild&) = delete;

  const std::vector<std::string>& addresses() const { return addresses_; }
  void stop() const {
    kill(pid_, SIGSTOP);
    int status = 0;
    waitpid(pid_, &status, WUNTRACED);
  }
  void go_on() const { kill(pid_, SIGCONT); }

  // The largest number of workers of a shard; the sum of applied pushes.
  size_t workers() const {
    size_t most = 0;
    for (const auto& shard : stats()) most = std::max(most, shard["workers"].size());
    return most;
  }
  uint64_t pushes() const {
    uint64_t pushes = 0;
    for (const auto& shard : stats()) pushes += shard["pushes"].get<uint64_t>();
    return pushes;
  }

 private:
  std::vector<nlohmann::json> stats() const {
    std::vector<nlohmann::json> stats;
    for (const std::string& each : addresses_) {
      stats.push_back(nlohmann::json::parse(shard_stats(each, "", false, 60)));
    }
    return stats;
  }

  Gate told_;
  pid_t pid_;
  std::vector<std::string> addresses_;
};

// Seconds until kTimeout.
template <typename Call>
double silent_for(Call call) {
  const uint64_t begin = now_ns();
  message_of(Code::kTimeout, call);
  return 1e-9 * static_cast<double>(now_ns() - begin);
}

struct Enough {};

class ParameterSilence : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Over, ParameterSilence, ::testing::Values(kLocal, kTcp),
                         [](const auto& of) { return of.param == kTcp ? "tcp" : "local"; });

TEST_P(ParameterSilence, connect_waits_no_longer_than_its_timeout) {
  const net::Listener nobody(GetParam(), {});
  const Deadline twice(2.4);
  const std::string why =
      message_of(Code::kTimeout, [&] { ParameterClient({nobody.address()}, {.retry_s = 1.2}); });
  EXPECT_NE(why.find(nobody.address()), std::string::npos) << why;
  EXPECT_FALSE(twice.passed());
}

TEST_P(ParameterSilence, all_that_has_an_end_has_it_in_time_however_many_shards_are_silent) {
  const ServingChild server(GetParam());
  ParameterClient client(server.addresses(), {.retry_s = 1});
  const Slab slab = Slab::make(client.layout(), Slab::Kind::kShared);
  const auto push = [&](float value) {
    std::ranges::fill(slab.values(), value);
    EXPECT_TRUE(client.push(slab).applied);
  };
  const std::vector<std::function<void()>> calls = {
      [&] { ParameterClient(server.addresses(), {.retry_s = 1}); },
      [&] { client.stats(); },
      [&] { push(-100); },
      [&] {  // on the same host a pull sends no request
        if (client.local()) throw Error(Code::kTimeout, "pull", "local");
        client.pull(slab);
      },
  };
  push(0);
  for (const auto& call : calls) {
    server.stop();
    EXPECT_LT(silent_for(call), 2.9);
    server.go_on();
    push(-1);
  }
  // The worker that gave up its push hung up before the shards continued: none has applied its
  // part.
  EXPECT_EQ(server.pushes(), kSilentShards * 5);
  client.pull(slab);
  EXPECT_TRUE(std::ranges::all_of(slab.values(), [](float each) { return each == 4; }));
}

TEST_P(ParameterSilence, a_push_that_may_be_held_is_waited_for) {
  const ServingChild server(GetParam(), {.staleness = 5});
  ParameterClient client(server.addresses(), {.retry_s = 1});
  const Slab slab = Slab::make(client.layout());
  std::ranges::fill(slab.values(), -1.0f);
  client.push(slab);
  server.stop();
  auto pushing = std::async(std::launch::async, [&] { return client.push(slab).applied; });
  EXPECT_EQ(pushing.wait_for(std::chrono::seconds(2)), std::future_status::timeout);
  server.go_on();
  EXPECT_TRUE(pushing.get());
  client.pull(slab);
  EXPECT_EQ(slab.values()[0], 2.0f);
}

// Both kinds of addresses at once: the time is a constant of the client.
TEST(ParameterSilenceOfAll, close_waits_for_a_short_time_only) {
  const ServingChild local(kLocal);
  const ServingChild tcp(kTcp);
  const std::array servers = {&local, &tcp};
  std::vector<std::unique_ptr<ParameterClient>> clients;
  for (const ServingChild* server : servers) {
    clients.push_back(std::make_unique<ParameterClient>(server->addresses(), ClientOptions{}));
    server->stop();
  }
  const Deadline soon(9);
  std::vector<std::future<void>> closing;
  for (const auto& client : clients) {
    closing.push_back(std::async(std::launch::async, [&] { client->close(); }));
  }
  for (auto& each : closing) each.get();
  EXPECT_FALSE(soon.passed());
  for (const ServingChild* server : servers) {
    server->go_on();
    EXPECT_TRUE(eventually([&] { return server->workers() == 0; }));
  }
}

TEST_P(ParameterSilence, an_exception_during_close_is_thrown_after_all_shards_were_told) {
  const ServingChild server(GetParam());
  bool enough = false;
  const ClientOptions options{.while_waiting = [&] {
    if (enough) throw Enough();
  }};
  ParameterClient client(server.addresses(), options);
  {
    ParameterClient another(server.addresses(), options);  // whose destruction does not throw
    server.stop();
    enough = true;
    EXPECT_THROW(client.close(), Enough);
  }
  client.close();
  message_of(Code::kClosed, [&] { client.stats(); });
  server.go_on();
  EXPECT_TRUE(eventually([&] { return server.workers() == 0; }));
}

TEST_P(ParameterSilence, a_connect_that_was_given_up_is_no_worker) {
  for (const bool interrupted : {false, true}) {
    const ServingChild server(GetParam(), {.workers = 2});
    server.stop();
    if (interrupted) {
      EXPECT_THROW(ParameterClient(server.addresses(), {.while_waiting = [] { throw Enough(); }}),
                   Enough);
    } else {
      message_of(Code::kTimeout, [&] { ParameterClient(server.addresses(), {.retry_s = 1}); });
    }
    server.go_on();
    ParameterClient one(server.addresses(), {});
    const Slab slab = Slab::make(one.layout());
    auto pushing = std::async(std::launch::async, [&] { return one.push(slab).applied; });
    EXPECT_EQ(pushing.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
    EXPECT_EQ(server.workers(), 1u);
    ParameterClient two(server.addresses(), {});
    EXPECT_TRUE(pushing.get());
  }
}

// A raw connection that sends a worker's messages.
class Saying {
 public:
  explicit Saying(const std::string& address) : line_(net::connect(address)) {}

  template <typename... Parts>
  void operator()(wire::Ask ask, const Parts&... parts) {
    say(ask, parts...);
    ASSERT_TRUE(line_->receive(60));
  }
  // Does not wait for an answer.
  template <typename... Parts>
  void say(wire::Ask ask, const Parts&... parts) {
    std::vector<std::byte> head;
    wire::append(head, wire::AskHead{.ask = ask});
    (wire::append(head, parts), ...);
    line_->send(head);
  }

 private:
  std::unique_ptr<net::Connection> line_;
};

TEST_P(ParameterSilence, a_worker_that_hung_up_before_its_ready_was_read_does_not_count) {
  ServingChild server(GetParam(), {.workers = 2});
  ParameterClient stays(server.addresses(), {});
  {
    Saying gives_up(server.addresses()[0]);
    gives_up(wire::Ask::kHello, wire::HelloHead{.worker = 5});
    server.stop();
    gives_up.say(wire::Ask::kReady);
  }
  server.go_on();
  EXPECT_TRUE(eventually([&] { return server.workers() == 1; }));
  const Slab slab = Slab::make(stays.layout());
  auto pushing = std::async(std::launch::async, [&] { return stays.push(slab).applied; });
  EXPECT_EQ(pushing.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  ParameterClient another(server.addresses(), {});
  EXPECT_TRUE(pushing.get());
}

TEST_P(ParameterSilence, a_killed_worker_is_not_waited_for) {
  const ServingChild server(GetParam(), {.workers = 2});
  ParameterClient stays(server.addresses(), {});
  Gate connected;
  const pid_t ends = start_child([&] {
    const ParameterClient client(server.addresses(), {});
    connected.send(true);
    for (;;) pause();
    return true;
  });
  bool is_there = false;
  ASSERT_TRUE(connected.receive(is_there));
  kill_child(ends);
  poll(nullptr, 0, 200);  // until the shards have noticed
  const Slab slab = Slab::make(stays.layout());
  auto pushing = std::async(std::launch::async, [&] { return stays.push(slab).applied; });
  EXPECT_EQ(pushing.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  ParameterClient another(server.addresses(), {});  // else it would wait for ever
  EXPECT_TRUE(pushing.get());
}

TEST_P(ParameterSilence, a_worker_that_hangs_up_after_hello_does_not_count) {
  const ServingChild server(GetParam());
  const std::string& address = server.addresses()[0];
  {
    Saying hello(address);
    hello(wire::Ask::kHello, wire::HelloHead{.worker = 5});
    EXPECT_EQ(server.workers(), 1u);
  }
  EXPECT_TRUE(eventually([&] { return server.workers() == 0; }));
  {  // its second connection counts
    auto first = std::make_unique<Saying>(address);
    (*first)(wire::Ask::kHello, wire::HelloHead{.worker = 5});
    Saying second(address);
    second(wire::Ask::kHello, wire::HelloHead{.worker = 5});
    first.reset();
    Saying other(address);
    other(wire::Ask::kHello, wire::HelloHead{.worker = 6});
    other(wire::Ask::kPull);
  }
  // Worker 5 existed before its second connection, and worker 6 has pushed.
  poll(nullptr, 0, 200);
  EXPECT_EQ(server.workers(), 2u);
}

}  // namespace
}  // namespace penstock::train
