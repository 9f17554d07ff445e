#include <signal.h>

#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "penstock/net/listener.h"
#include "tests/cpp/memory/child.h"
#include "tests/cpp/train/refusals.h"
#include "tests/cpp/train/serving.h"

// Shards that are stopped: their sockets take what is said to them, and nobody answers.
namespace penstock::train {
namespace {

using penstock::testing::Gate;
using penstock::testing::kill_child;
using penstock::testing::start_child;
using testing::kLocal;
using testing::kTcp;
using testing::message_of;

Layout of_ten() { return Layout{{"w", {10}}}; }

// A server that is a process, started while this one has one thread.
class ServingChild {
 public:
  ServingChild() {
    pid_ = start_child([&] {
      ParameterServer server(Parameters(of_ten()), Optimizer::sgd(1.0), {.listen = {kTcp}});
      told_.send(std::stoi(server.addresses()[0].substr(std::string("tcp://127.0.0.1:").size())));
      for (;;) pause();
      return true;
    });
    int port = 0;
    EXPECT_TRUE(told_.receive(port));
    address_ = "tcp://127.0.0.1:" + std::to_string(port);
  }
  ~ServingChild() { kill_child(pid_); }
  ServingChild(const ServingChild&) = delete;
  ServingChild& operator=(const ServingChild&) = delete;

  const std::string& address() const { return address_; }
  void stop() const {
    kill(pid_, SIGSTOP);
    int status = 0;
    waitpid(pid_, &status, WUNTRACED);
  }
  void go_on() const { kill(pid_, SIGCONT); }

 private:
  Gate told_;
  pid_t pid_;
  std::string address_;
};

TEST(ParameterSilence, who_connects_waits_for_so_long_and_no_longer) {
  for (const char* kind : {kLocal, kTcp}) {
    const net::Listener nobody(kind, {});
    const net::Deadline twice(2.4);
    const std::string why =
        message_of(Code::kTimeout, [&] { ParameterClient({nobody.address()}, {.retry_s = 1.2}); });
    EXPECT_NE(why.find(nobody.address()), std::string::npos) << why;
    EXPECT_FALSE(twice.passed());
  }
}

TEST(ParameterSilence, pulls_and_statistics_have_an_end_and_a_push_is_waited_for) {
  const ServingChild server;
  ParameterClient client({server.address()}, {.retry_s = 1});
  const Slab slab = Slab::make(client.layout());
  client.pull(slab);
  server.stop();
  message_of(Code::kTimeout, [&] { client.pull(slab); });
  message_of(Code::kTimeout, [&] { client.stats(); });
  server.go_on();
  client.pull(slab);

  server.stop();
  std::ranges::fill(slab.values(), -1.0f);
  auto pushing = std::async(std::launch::async, [&] { return client.push(slab).applied; });
  EXPECT_EQ(pushing.wait_for(std::chrono::seconds(4)), std::future_status::timeout);
  server.go_on();
  EXPECT_TRUE(pushing.get());
  client.pull(slab);
  EXPECT_EQ(slab.values()[0], 1.0f);
}

TEST(ParameterSilence, who_says_goodbye_is_held_up_for_a_moment_only) {
  const ServingChild server;
  ParameterClient client({server.address()}, {.retry_s = 1});
  server.stop();
  const net::Deadline soon(30);
  client.close();
  EXPECT_FALSE(soon.passed());
}

}  // namespace
}  // namespace penstock::train
