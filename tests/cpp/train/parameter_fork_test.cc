#include <atomic>
#include <filesystem>
#include <thread>
#include <vector>

#include "tests/cpp/memory/child.h"
#include "tests/cpp/train/channels.h"
#include "tests/cpp/train/refusals.h"
#include "tests/cpp/train/serving.h"

// Servers, clients and learners that fork while their threads run. Everything runs in children of
// this process, which has one thread; the thread sanitizer does not support forks of processes with
// several threads.
namespace penstock::train {
namespace {

using penstock::testing::holds_in_child;
using penstock::testing::start_child;
using penstock::testing::status_of;
using testing::a_name;
using testing::an_item;
using testing::eventually;

constexpr int kForks = 40;

class ParameterFork : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the thread sanitizer does not run processes that fork with threads";
#elif defined(__SANITIZE_ADDRESS__) && __GNUC__ < 14
    GTEST_SKIP() << "this address sanitizer's own locks stay held in a child of busy threads";
#endif
  }
};

template <typename Function>
bool is_refused(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.code() == Code::kInvalidArgument;
  }
  return false;
}

// For a server, a client or a learner.
template <typename Body>
bool holds_in_children(Body body) {
  for (int i = 0; i < kForks; ++i) {
    if (!holds_in_child([&] {
          alarm(10);
          return body();
        })) {
      return false;
    }
  }
  return true;
}

// Threads that are busy until destruction.
class Busy {
 public:
  template <typename Work>
  explicit Busy(Work work)
      : thread_([this, work] {
          while (!done_) work();
        }) {}
  ~Busy() {
    done_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

Layout of_a_million() { return Layout{{"w", {1'000'000}}}; }

TEST_F(ParameterFork, a_servers_child_lets_go_of_it) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "servers_child";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  EXPECT_TRUE(holds_in_child([&] {
    auto server = std::make_unique<ParameterServer>(
        Parameters(of_a_million()), Optimizer::sgd(1.0),
        ServerOptions{.shards = 2, .snapshots = folder, .snapshot_s = 0.001});
    ParameterClient client(server->addresses(), {});
    const Slab gradient = Slab::make(client.layout(), Slab::Kind::kShared);
    Busy pushing([&] { client.push(gradient); });
    return holds_in_children([&] {
      const Slab slab = Slab::make(of_a_million());
      bool right = is_refused([&] { server->stats(); }) && is_refused([&] { server->read(slab); });
      server->close();
      right = right && is_refused([&] { server->stats(); });
      server.reset();
      return right;
    });
  }));
  std::filesystem::remove_all(folder);
}

TEST_F(ParameterFork, a_child_of_a_server_that_holds_a_push_ends) {
  EXPECT_TRUE(holds_in_child([] {
    auto server =
        std::make_unique<ParameterServer>(Parameters(Layout{{"w", {10}}}), Optimizer::sgd(1.0),
                                          ServerOptions{.mode = {.staleness = 0, .workers = 2}});
    auto client = std::make_unique<ParameterClient>(server->addresses(), ClientOptions{});
    std::thread pushing([&] {
      const Slab gradient = Slab::make(client->layout());
      try {
        client->push(gradient);
      } catch (const Error&) {  // the server has ended
      }
    });
    if (!eventually(
            [&] { return server->stats().find("\"waiting\":true") != std::string::npos; })) {
      return false;
    }
    const bool well = holds_in_children([&] {
      const Slab slab = Slab::make(client->layout());
      bool right = is_refused([&] { client->pull(slab); }) &&
                   is_refused([&] { client->push(slab); }) && is_refused([&] { client->stats(); });
      client->close();
      client.reset();
      server.reset();
      return right;
    });
    ParameterClient second(server->addresses(), {});
    const Slab gradient = Slab::make(second.layout());
    const bool applied = second.push(gradient).applied;
    pushing.join();
    return well && applied;
  }));
}

TEST_F(ParameterFork, a_learners_child_has_no_channel_while_others_take) {
  EXPECT_TRUE(holds_in_child([] {
    const std::string name = a_name();
    auto channel = std::make_unique<Channel>(name);
    Producer producer(name);
    Busy taking([&] { channel->get(100, 1'000'000); });
    Busy putting(
        [&] { producer.put(an_item(1, 0, 10'000)); });  // ends first: it may wait for space
    return holds_in_children([&] {
      const bool right =
          is_refused([&] { channel->stats(); }) && is_refused([&] { channel->get(1); });
      channel->close();
      channel.reset();
      return right;
    });
  }));
}

}  // namespace
}  // namespace penstock::train
