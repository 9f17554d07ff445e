#include "penstock/net/listener.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>
#include <vector>

#include "tests/cpp/memory/child.h"
#include "tests/cpp/net/line.h"

namespace penstock::net {
namespace {

using penstock::testing::start_child;
using penstock::testing::status_of;
using testing::accept_while;
using testing::code_of;
using testing::kSecret;
using testing::Line;
using testing::raw_socket;
using testing::text_of;

ListenOptions listen_with(const std::string& secret) {
  ListenOptions options;
  options.secret = secret;
  return options;
}
ConnectOptions connect_with(const std::string& secret) {
  ConnectOptions options;
  options.secret = secret;
  options.timeout_s = 60;
  return options;
}

// Reads until the other end hangs up; returns the number of bytes.
size_t read_to_end(int fd) {
  char bytes[256];
  size_t total = 0;
  for (ssize_t got; (got = read(fd, bytes, sizeof(bytes))) > 0;) total += static_cast<size_t>(got);
  return total;
}

TEST(Listener, an_address_is_one_that_connect_takes) {
  for (const char* kind : {"tcp://127.0.0.1:0", "127.0.0.1:0", "tcp://localhost:0", "unix:@"}) {
    Line line(kind);
    EXPECT_FALSE(line.listener.address().ends_with(":0"));
    EXPECT_NE(line.listener.address(), "unix:@");
    line.a->send(bytes_of("here"));
    EXPECT_EQ(text_of(line.b->receive(60)->head), "here");
  }
}

TEST(Listener, addresses_that_are_none_are_refused) {
  for (const char* address :
       {"", "tcp://", "tcp://127.0.0.1", "127.0.0.1:", ":80", "127.0.0.1:65536", "127.0.0.1:-1",
        "127.0.0.1:8o", "::1:80", "unix:", "unix:name", "udp://127.0.0.1:0"}) {
    EXPECT_EQ(code_of([&] { Listener listener(address); }), Code::kInvalidArgument) << address;
    EXPECT_EQ(code_of([&] { connect(address); }), Code::kInvalidArgument) << address;
  }
  const std::string longer = "unix:/" + std::string(sizeof(sockaddr_un::sun_path), 'x');
  EXPECT_EQ(code_of([&] { Listener listener(longer); }), Code::kInvalidArgument);
}

TEST(Listener, other_hosts_need_a_secret) {
  try {
    Listener listener("tcp://0.0.0.0:0");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("secret"), std::string::npos);
  }
}

TEST(Listener, nobody_there_is_said_at_once) {
  std::string address;
  {
    Listener listener;
    address = listener.address();
    EXPECT_EQ(code_of([&] { Listener other(address); }), Code::kInvalidArgument);
  }
  EXPECT_EQ(code_of([&] { connect(address); }), Code::kNotFound);
  EXPECT_EQ(code_of([&] { connect("unix:@nobody-there"); }), Code::kNotFound);
  Listener again(address);  // the port is free at once
}

TEST(Listener, a_socket_file_is_gone_afterwards_and_one_that_was_left_is_no_hindrance) {
  const auto folder = std::filesystem::temp_directory_path() /
                      ("penstock-net-" + std::to_string(std::random_device()()));
  std::filesystem::create_directory(folder);
  const std::string file = folder / "socket";
  {
    Line line("unix:" + file);
    EXPECT_TRUE(std::filesystem::exists(file));
    EXPECT_EQ(code_of([&] { Listener other("unix:" + file); }), Code::kInvalidArgument);
  }
  EXPECT_FALSE(std::filesystem::exists(file));
  const pid_t killed = start_child([&] {
    Listener listener("unix:" + file);
    _exit(0);
    return false;
  });
  EXPECT_EQ(status_of(killed), 0);
  EXPECT_TRUE(std::filesystem::exists(file));
  { Line line("unix:" + file); }
  std::filesystem::remove_all(folder);
}

TEST(Listener, close_wakes_who_accepts) {
  for (const char* kind : {"tcp://127.0.0.1:0", "unix:@"}) {
    Listener listener(kind);
    EXPECT_FALSE(listener.accept(0));
    std::thread accepting([&] { EXPECT_FALSE(listener.accept(kForEver)); });
    listener.close();
    accepting.join();
    EXPECT_EQ(code_of([&] { connect(listener.address()); }), Code::kNotFound);
  }
}

TEST(Listener, another_secret_gets_nobody_in_and_harms_nobody) {
  Listener listener("tcp://127.0.0.1:0", listen_with(kSecret));
  auto in = accept_while(listener, [&] {
    for (const char* wrong : {"", "another secret of tests"}) {
      EXPECT_EQ(code_of([&] { connect(listener.address(), connect_with(wrong)); }),
                Code::kInvalidArgument);
    }
    auto right = connect(listener.address(), connect_with(kSecret));
    right->send(bytes_of("in"));
  });
  EXPECT_EQ(text_of(in->receive(60)->head), "in");
}

TEST(Listener, the_silent_the_slow_and_the_garbled_hold_up_nobody) {
  Listener listener("tcp://127.0.0.1:0", listen_with(kSecret));
  std::vector<os::Fd> strangers;
  for (int i = 0; i < 20; ++i) {
    strangers.push_back(raw_socket(listener.address()));
    const std::string_view says = i % 4 == 1 ? "pen" : i % 4 == 2 ? "GET / HTTP/1.1" : "";
    ASSERT_EQ(write(strangers.back().get(), says.data(), says.size()),
              static_cast<ssize_t>(says.size()));
    if (i % 4 == 3) strangers.back().reset();
  }
  auto in = accept_while(listener, [&] { connect(listener.address(), connect_with(kSecret)); });
  // Peers with an invalid hello are already disconnected: they received a hello and then the end.
  for (size_t i = 2; i < strangers.size(); i += 4) EXPECT_LE(read_to_end(strangers[i].get()), 48u);
}

TEST(Listener, who_takes_too_long_is_sent_away) {
  ListenOptions options = listen_with(kSecret);
  options.handshake_timeout_s = 0.01;
  Listener listener("tcp://127.0.0.1:0", options);
  const os::Fd silent = raw_socket(listener.address());
  std::thread accepting([&] { EXPECT_FALSE(listener.accept(kForEver)); });
  EXPECT_LE(read_to_end(silent.get()), 48u);
  listener.close();
  accepting.join();
}

TEST(Listener, of_too_many_strangers_the_oldest_go) {
  ListenOptions options = listen_with(kSecret);
  options.handshake_timeout_s = options.silent_timeout_s = kForEver;
  options.max_handshakes = 4;
  Listener listener("tcp://127.0.0.1:0", options);
  std::vector<os::Fd> strangers;
  for (int i = 0; i < 12; ++i) strangers.push_back(raw_socket(listener.address()));
  std::thread accepting([&] { EXPECT_FALSE(listener.accept(kForEver)); });
  for (int i = 0; i < 8; ++i) EXPECT_LE(read_to_end(strangers[static_cast<size_t>(i)].get()), 48u);
  // The last four are still in the handshake.
  pollfd last{strangers[11].get(), POLLIN, 0};
  ASSERT_EQ(poll(&last, 1, 60'000), 1);
  char hello[48];
  EXPECT_EQ(recv(strangers[11].get(), hello, sizeof(hello), MSG_WAITALL), 48);
  listener.close();
  accepting.join();
}

// A client in the middle of its handshake, whose steps the test decides.
class SlowClient {
 public:
  explicit SlowClient(const std::string& address)
      : fd_(raw_socket(address)),
        handshake_(Handshake::Side::kClient, {.secret = kSecret}, "the listener") {}

  // False: the listener has disconnected it.
  bool advance() {
    try {
      return advance_handshake(fd_.get(), handshake_, "the listener") != HandshakeStatus::kRefused;
    } catch (const Error&) {
      return false;
    }
  }
  void wait() { wait_for(fd_.get(), POLLIN, Deadline(60)); }

 private:
  os::Fd fd_;
  Handshake handshake_;
};

os::Fd raw_socket_from(const char* host, const std::string& address) {
  const SocketAddress from = resolve(std::string(host) + ":0").front();
  const SocketAddress to = resolve(address).front();
  os::Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(bind(fd.get(), from.get(), from.length), 0);
  EXPECT_EQ(::connect(fd.get(), to.get(), to.length), 0);
  return fd;
}

ListenOptions listen_to_64() {
  ListenOptions options = listen_with(kSecret);
  options.max_handshakes = 64;
  return options;
}

TEST(Listener, a_hundred_silent_connections_push_out_nobody_who_has_sent_its_proof) {
  Listener listener("tcp://127.0.0.1:0", listen_to_64());
  SlowClient honest(listener.address());
  EXPECT_FALSE(listener.accept(0.01));  // sends it the hello
  honest.wait();
  EXPECT_TRUE(honest.advance());  // sends its proof
  std::vector<os::Fd> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(raw_socket(listener.address()));
  EXPECT_TRUE(listener.accept(60));
}

TEST(Listener, a_host_that_opens_many_connections_pushes_out_its_own) {
  Listener listener("tcp://127.0.0.1:0", listen_to_64());
  SlowClient honest(listener.address());
  EXPECT_FALSE(listener.accept(0.01));
  std::vector<os::Fd> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(raw_socket_from("127.0.0.2", listener.address()));
  EXPECT_FALSE(listener.accept(0.01));
  EXPECT_LE(read_to_end(silent[0].get()), 48u);  // disconnected
  honest.wait();
  EXPECT_TRUE(honest.advance());
  EXPECT_TRUE(listener.accept(60));
}

TEST(Listener, a_client_that_stays_silent_is_disconnected_long_before_a_slow_one) {
  ListenOptions options = listen_with(kSecret);
  options.silent_timeout_s = 0.02;
  options.handshake_timeout_s = 60;
  Listener listener("tcp://127.0.0.1:0", options);
  const os::Fd silent = raw_socket(listener.address()), slow = raw_socket(listener.address());
  const char first_byte = 'p';
  ASSERT_EQ(send(slow.get(), &first_byte, 1, MSG_NOSIGNAL), 1);
  std::thread accepting([&] { EXPECT_FALSE(listener.accept(kForEver)); });
  EXPECT_LE(read_to_end(silent.get()), 48u);
  char hello[48];
  EXPECT_EQ(recv(slow.get(), hello, sizeof(hello), MSG_WAITALL), 48);
  pollfd end{slow.get(), POLLIN, 0};
  EXPECT_EQ(poll(&end, 1, 100), 0);  // still connected
  listener.close();
  accepting.join();
}

// A host that is gone acknowledges nothing, and keep-alive is silent then.
TEST(Listener, a_connection_ends_that_a_vanished_host_does_not_acknowledge) {
  for (const auto& [stall_s, expected_ms] : {std::pair{60.0, 60'000}, {1.0, 30'000}}) {
    Line line("tcp://127.0.0.1:0");
    const os::Fd fd = raw_socket(line.listener.address());
    prepare_connected(fd.get(), true, 0.1, stall_s);
    int limit_ms = 0;
    socklen_t length = sizeof(limit_ms);
    ASSERT_EQ(getsockopt(fd.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, &length), 0);
    EXPECT_EQ(limit_ms, expected_ms);
  }
}

TEST(Listener, many_connect_at_once) {
  Listener listener("tcp://127.0.0.1:0", listen_with(kSecret));
  constexpr int kMany = 12;
  std::vector<std::thread> threads;
  for (int i = 0; i < kMany; ++i) {
    threads.emplace_back([&, i] {
      connect(listener.address(), connect_with(kSecret))->send(bytes_of(std::to_string(i)));
    });
  }
  int sum = 0;
  for (int i = 0; i < kMany; ++i) {
    auto one = listener.accept(60);
    ASSERT_TRUE(one);
    sum += std::stoi(text_of(one->receive(60)->head));
  }
  for (auto& each : threads) each.join();
  EXPECT_EQ(sum, kMany * (kMany - 1) / 2);
}

class Forks : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the thread sanitizer does not run processes that fork with threads";
#endif
  }
};

TEST_F(Forks, a_child_has_neither_connection_nor_listener) {
  for (const char* kind : {"tcp://127.0.0.1:0", "unix:@"}) {
    Line line(kind);
    const pid_t child = start_child([&] {
      const bool closed = code_of([&] { line.a->send(bytes_of("x")); }) == Code::kClosed &&
                          code_of([&] { line.b->receive(0); }) == Code::kClosed &&
                          !line.listener.accept(kForEver);
      line.a.reset();
      line.listener.close();
      return closed;
    });
    EXPECT_EQ(status_of(child), 0);
    line.a->send(bytes_of("the parent's goes on"));
    EXPECT_EQ(text_of(line.b->receive(60)->head), "the parent's goes on");
    EXPECT_TRUE(accept_while(line.listener, [&] { connect(line.listener.address()); }));
  }
}

TEST_F(Forks, a_connection_ends_with_its_process_though_a_child_lives_on) {
  Listener listener("unix:@");
  penstock::testing::Gate ended;
  const pid_t parent = start_child([&] {
    auto line = connect(listener.address());
    start_child([&] {
      int word;
      return ended.receive(word);
    });
    _exit(0);
    return false;
  });
  auto in = listener.accept(60);
  ASSERT_TRUE(in);
  EXPECT_EQ(status_of(parent), 0);
  EXPECT_EQ(code_of([&] { in->receive(60); }), Code::kClosed);
  ended.send(0);
}

TEST_F(Forks, processes_of_another_user_are_neither_let_in_nor_believed) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be somebody else";
  const auto folder = std::filesystem::temp_directory_path() /
                      ("penstock-net-" + std::to_string(std::random_device()()));
  std::filesystem::create_directory(folder);
  std::filesystem::permissions(folder, std::filesystem::perms::all);
  const std::string file = folder / "socket";
  {
    Listener listener("unix:" + file);
    std::filesystem::permissions(file, std::filesystem::perms::all);
    const pid_t other = start_child([&] {
      if (setuid(65534) != 0) return false;
      // This end's check rejects the server; without that check, the server hangs up silently.
      if (code_of([&] { connect("unix:" + file); }) != Code::kInvalidArgument) return false;
      const os::Fd raw = raw_socket("unix:" + file);
      return read_to_end(raw.get()) == 0;
    });
    std::thread accepting([&] { EXPECT_FALSE(listener.accept(kForEver)); });
    EXPECT_EQ(status_of(other), 0);
    listener.close();
    accepting.join();
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace penstock::net
