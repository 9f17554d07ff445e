#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/net/socket.h"
#include "tests/cpp/memory/child.h"
#include "tests/cpp/train/publishing.h"
#include "tests/cpp/train/refusals.h"

// Publish and attach between processes, of which some are killed, stopped, or fork. Children are
// forked while this process has one thread.
namespace penstock::train {
namespace {

using penstock::testing::Gate;
using penstock::testing::kill_child;
using penstock::testing::start_child;
using penstock::testing::status_of;
using testing::a_name;
using testing::at_once;
using testing::eventually;
using testing::has;
using testing::is_whole;
using testing::message_of;
using testing::publish;
using testing::two_blocks;

#ifdef PENSTOCK_SANITIZED
constexpr int kReadsOfEach = 300;
#else
constexpr int kReadsOfEach = 20'000;
#endif

// Publishes one version after the other, from `from` on, until it is killed.
bool flat_out(const std::string& name, uint64_t from) {
  Parameters parameters(two_blocks());
  Publisher publisher(name, parameters.layout());
  for (uint64_t version = from;; ++version) publish(publisher, parameters, version);
}

TEST(PublishProcesses, none_of_many_reads_is_torn_and_no_reader_starves) {
  const std::string name = a_name();
  std::vector<pid_t> readers;
  for (int i = 0; i < 3; ++i) {
    readers.push_back(start_child([&] {
      Model model(name);
      uint64_t last = 0;
      for (int read = 0; read < kReadsOfEach; ++read) {
        const Reading reading = model.read();
        if (!is_whole(reading) || reading.version() < last) return false;
        last = reading.version();
        if (read % 100 == 0 && !model.wait(last + 1)) return false;
      }
      return true;
    }));
  }
  const pid_t learner = start_child([&] { return flat_out(name, 1); });
  for (pid_t reader : readers) EXPECT_EQ(status_of(reader), 0);
  kill_child(learner);
}

// A child that attaches, holds the newest version, and reports it.
pid_t holder(const std::string& name, Gate& gate) {
  return start_child([&] {
    Model model(name);
    const Reading held = model.read();
    gate.send(held.version());
    for (;;) pause();
    return true;
  });
}

TEST(PublishProcesses, a_killed_readers_slot_comes_back) {
  const std::string name = a_name();
  Gate gate;
  const pid_t reader = holder(name, gate);
  Parameters parameters(two_blocks());
  Publisher publisher(name, parameters.layout());
  publish(publisher, parameters, 1);
  uint64_t held;
  ASSERT_TRUE(gate.receive(held));
  for (uint64_t version = 2; version < 500; ++version) publish(publisher, parameters, version);
  EXPECT_EQ(publisher.slots(), 3u);
  EXPECT_EQ(publisher.holders(), std::vector<pid_t>{reader});
  kill_child(reader);
  ASSERT_TRUE(eventually([&] { return publisher.readers() == 0; }));
  EXPECT_TRUE(publisher.holders().empty());
  for (uint64_t version = 500; version < 700; ++version) publish(publisher, parameters, version);
  EXPECT_EQ(publisher.slots(), 2u);
}

TEST(PublishProcesses, a_stopped_reader_blocks_no_other) {
  const std::string name = a_name();
  Gate gate;
  const pid_t reader = start_child([&] {
    Model model(name);
    for (bool signalled = false;;) {
      if (!is_whole(model.read())) return false;
      if (!signalled) signalled = gate.send(1);
      if (model.version() >= 10'000) return true;
    }
  });
  Parameters parameters(two_blocks());
  Publisher publisher(name, parameters.layout());
  publish(publisher, parameters, 1);
  int reads;
  ASSERT_TRUE(gate.receive(reads));
  uint64_t version = 1;
  for (int round = 0; round < 20; ++round) {
    kill(reader, SIGSTOP);
    int status;
    ASSERT_EQ(waitpid(reader, &status, WUNTRACED), reader);
    ASSERT_TRUE(WIFSTOPPED(status));
    for (int i = 0; i < 100; ++i) publish(publisher, parameters, ++version);
    EXPECT_LE(publisher.slots(), 4u);
    kill(reader, SIGCONT);
  }
  publish(publisher, parameters, 10'000);
  EXPECT_EQ(status_of(reader), 0);
}

TEST(PublishProcesses, readers_keep_a_killed_learners_version_and_go_on_with_the_next) {
  const std::string name = a_name();
  Gate again;
  const pid_t first = start_child([&] { return flat_out(name, 1); });
  const pid_t second = start_child([&] {
    int go;
    return again.receive(go) && flat_out(name, 1'000'000'000);
  });
  Model model(name);
  for (uint64_t version = model.version(), i = 0; i < 50; ++i) {
    ASSERT_TRUE(model.wait(++version));
    ASSERT_TRUE(is_whole(model.read()));
  }
  const Reading kept = model.read();
  kill_child(first);
  ASSERT_TRUE(eventually([&] { return !model.alive(); }));
  const uint64_t last = model.version();
  EXPECT_GE(last, kept.version());
  EXPECT_LT(last, 1'000'000'000u);
  EXPECT_EQ(model.read().version(), last);
  EXPECT_TRUE(is_whole(model.read()));
  EXPECT_FALSE(model.wait(last + 1, 1'000'000));
  again.send(1);
  ASSERT_TRUE(model.wait(1'000'000'000)) << "sleeps across learners";
  EXPECT_TRUE(model.alive());
  EXPECT_TRUE(is_whole(model.read()));
  EXPECT_TRUE(is_whole(kept));
  EXPECT_LT(kept.version(), 1'000'000'000u);
  kill_child(second);
}

TEST(PublishProcesses, a_new_learner_with_other_blocks_is_refused_until_it_is_gone) {
  const std::string name = a_name();
  Parameters parameters(two_blocks()), others(Layout{{"w", {3000}}, {"b", {6}}});
  auto first = std::make_unique<Publisher>(name, parameters.layout());
  publish(*first, parameters, 3);
  Model model(name);
  first.reset();
  auto second = std::make_unique<Publisher>(name, others.layout());
  auto refused = [&] {
    try {
      model.read();
    } catch (const Error& error) {
      return error.code() == Code::kInvalidArgument && has(error.what(), "'b' is (5,) here");
    }
    return false;
  };
  ASSERT_TRUE(eventually(refused));
  EXPECT_FALSE(model.alive());
  second.reset();
  ASSERT_TRUE(eventually([&] { return !refused(); }));
  EXPECT_EQ(model.read().version(), 3u);
  Publisher third(name, parameters.layout());
  ASSERT_TRUE(eventually([&] { return model.alive(); }));
  EXPECT_EQ(model.read().version(), 3u) << "the new one has published nothing yet";
  publish(third, parameters, 2);
  EXPECT_EQ(model.read().version(), 2u);
}

TEST(PublishProcesses, a_second_learner_gets_an_error_that_names_the_first) {
  const std::string name = a_name();
  Gate gate;
  const pid_t first = start_child([&] {
    Publisher publisher(name, two_blocks());
    gate.send(1);
    for (;;) pause();
    return true;
  });
  int there;
  ASSERT_TRUE(gate.receive(there));
  EXPECT_TRUE(has(message_of(Code::kInvalidArgument, [&] { Publisher(name, two_blocks()); }),
                  "process " + std::to_string(first)));
  // Even if it is stopped and does not answer.
  kill(first, SIGSTOP);
  int status;
  ASSERT_EQ(waitpid(first, &status, WUNTRACED), first);  // it may still answer until then
  EXPECT_TRUE(has(message_of(Code::kInvalidArgument, [&] { Publisher(name, two_blocks()); }),
                  "process " + std::to_string(first)));
  EXPECT_TRUE(has(message_of(Code::kTimeout, [&] { Model(name, {.timeout_ns = 1'000'000'000}); }),
                  "process " + std::to_string(first)));
  kill_child(first);
  EXPECT_NO_THROW(Publisher(name, two_blocks()));
}

// Another user cannot enter the folder of names: neither find, nor serve, nor flood one.
TEST(PublishProcesses, other_users_neither_read_nor_serve) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  constexpr uid_t kNobody = 65534;
  const std::string name = a_name(), theirs = a_name();
  const net::SocketAddress ours = net::named_address("weights", name),
                           squatted = net::named_address("weights", theirs);
  Gate ready, asked;
  const pid_t other = start_child([&] {
    if (setuid(kNobody) != 0) return false;
    unsetenv("XDG_RUNTIME_DIR");
    const os::Fd server = net::make_socket(squatted);
    if (bind(server.get(), squatted.get(), squatted.length) == 0 || errno != EACCES) return false;
    ready.send(1);
    int go;
    asked.receive(go);
    // With its own name it finds no learner.
    try {
      Model model(name, at_once());
      return false;
    } catch (const Error& error) {
      if (error.code() != Code::kTimeout) return false;
    }
    const os::Fd client = net::make_socket(ours);
    return connect(client.get(), ours.get(), ours.length) != 0 && errno == EACCES;
  });
  int there;
  ASSERT_TRUE(ready.receive(there));
  {
    Parameters parameters(two_blocks());
    Publisher publisher(name, parameters.layout());
    publish(publisher, parameters, 1);
    EXPECT_NO_THROW(Publisher(theirs, two_blocks()));
    asked.send(1);
    EXPECT_EQ(status_of(other), 0);
    EXPECT_EQ(publisher.readers(), 0u);
  }
}

// Even if the permissions of folder and socket were opened.
TEST(PublishProcesses, a_reader_of_another_user_is_disconnected_and_a_server_is_not_trusted) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const std::string name = a_name();
  const net::SocketAddress address = net::named_address("weights", name);
  Gate ready;
  const pid_t other = start_child([&] {
    const os::Fd server = net::make_socket(address);
    if (bind(server.get(), address.get(), address.length) != 0 || setuid(65534) != 0) return false;
    if (listen(server.get(), 10) != 0) return false;
    ready.send(1);
    pause();
    return true;
  });
  int there;
  ASSERT_TRUE(ready.receive(there));
  const std::string who = "process " + std::to_string(other) + " of another user, 65534";
  EXPECT_TRUE(has(message_of(Code::kInvalidArgument, [&] { Model model(name); }), who));
  EXPECT_TRUE(has(message_of(Code::kInvalidArgument, [&] { Publisher(name, two_blocks()); }), who));
  kill_child(other);
}

// Connections in a loop: forks, timers and honest readers go on.
TEST(PublishProcesses, a_flood_of_connections_delays_neither_forks_nor_readers) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer does not run processes that fork with threads";
#endif
  const std::string name = a_name();
  Parameters parameters(two_blocks(16));
  Publisher publisher(name, parameters.layout());
  publish(publisher, parameters, 1);
  std::vector<pid_t> floods;
  for (int i = 0; i < 3; ++i) {
    floods.push_back(start_child([&] {
      for (;;) connect_to_name("weights", name);
      return true;
    }));
  }
  for (int i = 0; i < 5; ++i) {
    const uint64_t begin = now_ns();
    EXPECT_EQ(status_of(start_child([] { return true; })), 0);
    EXPECT_LT(now_ns() - begin, 5'000'000'000u);
  }
  EXPECT_EQ(Model(name).version(), 1u);
  for (const pid_t flood : floods) kill_child(flood);
}

}  // namespace
}  // namespace penstock::train
