#include "penstock/train/model.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/train/weights_memory.h"
#include "tests/cpp/memory/child.h"
#include "tests/cpp/train/publishing.h"
#include "tests/cpp/train/refusals.h"

namespace penstock::train {
namespace {

using testing::a_name;
using testing::at_once;
using testing::eventually;
using testing::has;
using testing::is_whole;
using testing::message_of;
using testing::publish;
using testing::two_blocks;

TEST(Model, reads_the_newest_version_in_place) {
  const std::string name = a_name();
  Parameters parameters(two_blocks());
  Publisher publisher(name, parameters.layout());
  EXPECT_EQ(publish(publisher, parameters, 5), 5u);
  Model model(name);
  EXPECT_EQ(model.layout(), parameters.layout());
  EXPECT_TRUE(model.alive());
  Reading five = model.read();
  EXPECT_EQ(five.version(), 5u);
  EXPECT_EQ(publish(publisher, parameters, 9), 9u);
  EXPECT_EQ(model.version(), 9u);
  EXPECT_EQ(model.read().version(), 9u);
  EXPECT_EQ(five.version(), 5u);
  EXPECT_TRUE(is_whole(five));
  const Tensor w = five.at("w");
  EXPECT_TRUE(w.read_only());
  EXPECT_EQ(w.shape(), Shape{3000});
  EXPECT_EQ(w.as_span<const float>().data(), five.values().data());
  message_of(Code::kNotFound, [&] { (void)five.at("x"); });
}

TEST(Model, a_tensor_holds_its_version_when_reading_and_model_are_gone) {
  const std::string name = a_name();
  Parameters parameters(two_blocks());
  Publisher publisher(name, parameters.layout());
  publish(publisher, parameters, 1);
  Tensor kept;
  {
    Model model(name);
    kept = model.read().at("w");
  }
  for (uint64_t version = 2; version < 300; ++version) publish(publisher, parameters, version);
  EXPECT_EQ(kept.as_span<const float>()[2999], 1);
  EXPECT_EQ(publisher.holders(), std::vector<pid_t>{getpid()});
  kept = Tensor();
  EXPECT_TRUE(eventually([&] { return publisher.readers() == 0; }));
  EXPECT_TRUE(publisher.holders().empty());
}

TEST(Model, versions_are_those_of_the_parameters_or_go_on_by_one) {
  Parameters parameters(two_blocks());
  Publisher publisher(a_name(), parameters.layout());
  EXPECT_EQ(publisher.publish(parameters), 0u);
  EXPECT_EQ(publisher.publish(parameters), 1u);
  parameters.set_version(100);
  EXPECT_EQ(publisher.publish(parameters), 100u);
  EXPECT_EQ(publisher.publish(parameters), 101u);
  message_of(Code::kInvalidArgument, [&] {
    publisher.publish(Parameters(Layout{{"w", {3000}}, {"b", {6}}}));
  });
}

TEST(Model, with_max_lag_the_last_version_is_handed_out_again) {
  const std::string name = a_name();
  Parameters parameters(two_blocks());
  Publisher publisher(name, parameters.layout());
  publish(publisher, parameters, 10);
  Model model(name);
  EXPECT_EQ(model.read(3).version(), 10u);
  publish(publisher, parameters, 13);
  EXPECT_EQ(model.read(3).version(), 10u);
  EXPECT_EQ(model.read(2).version(), 13u);
  EXPECT_EQ(model.read(3).version(), 13u);
  publish(publisher, parameters, 14);
  EXPECT_EQ(model.read(3).version(), 13u);
  EXPECT_EQ(model.read().version(), 14u);
}

TEST(Model, attach_waits_for_the_first_version) {
  const std::string name = a_name();
  EXPECT_TRUE(
      has(message_of(Code::kTimeout, [&] { Model(name, at_once()); }), "no process publishes"));
  Parameters parameters(two_blocks());
  std::thread reader([&] {
    Model model(name);
    EXPECT_EQ(model.read().version(), 4u);
  });
  {
    Publisher publisher(name, parameters.layout());
    EXPECT_TRUE(eventually([&] { return publisher.readers() == 1; }));
    EXPECT_TRUE(has(message_of(Code::kTimeout, [&] { Model(name, {.timeout_ns = 300'000'000}); }),
                    "has not published"));
    publish(publisher, parameters, 4);
    reader.join();
  }
  message_of(Code::kInvalidArgument, [] { Model("", at_once()); });
  message_of(Code::kInvalidArgument, [] { Model(std::string(kMaxNameBytes + 1, 'x')); });
}

TEST(Model, another_schema_is_refused_by_the_block_that_differs) {
  const std::string name = a_name();
  Parameters parameters(two_blocks());
  Publisher publisher(name, parameters.layout());
  publish(publisher, parameters, 1);
  const Layout other{{"w", {3000}}, {"b", {6}}};
  const std::string why = message_of(Code::kInvalidArgument, [&] { Model(name, {.like = other}); });
  EXPECT_TRUE(has(why, "'b' is (6,) here and (5,) there")) << why;
  EXPECT_EQ(Model(name, {.like = two_blocks()}).version(), 1u);
}

TEST(Model, wait_sleeps_until_the_version_is_there) {
  const std::string name = a_name();
  Parameters parameters(two_blocks());
  Publisher publisher(name, parameters.layout());
  publish(publisher, parameters, 1);
  Model model(name);
  EXPECT_TRUE(model.wait(1));
  EXPECT_FALSE(model.wait(2, 0));
  EXPECT_FALSE(model.wait(2, 1'000'000));
  std::thread waiter([&] { EXPECT_TRUE(model.wait(3)); });
  publish(publisher, parameters, 2);
  publish(publisher, parameters, 7);
  waiter.join();
}

TEST(Model, close_ends_waits_and_leaves_readings) {
  const std::string name = a_name();
  Parameters parameters(two_blocks());
  Publisher publisher(name, parameters.layout());
  publish(publisher, parameters, 1);
  Model model(name);
  Reading kept = model.read(5);
  std::thread waiter([&] { message_of(Code::kClosed, [&] { model.wait(1000); }); });
  model.close();
  waiter.join();
  model.close();
  EXPECT_FALSE(model.alive());
  message_of(Code::kClosed, [&] { model.read(); });
  message_of(Code::kClosed, [&] { model.version(); });
  EXPECT_TRUE(is_whole(kept));
  EXPECT_EQ(publisher.readers(), 1u);
}

TEST(Model, many_threads_read_from_one) {
  const std::string name = a_name();
  Parameters parameters(two_blocks(300));
  Publisher publisher(name, parameters.layout());
  publish(publisher, parameters, 1);
  Model model(name);
#ifdef PENSTOCK_SANITIZED
  constexpr int kReads = 500;
#else
  constexpr int kReads = 20'000;
#endif
  std::atomic<int> left{8}, torn{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (int read = 0; read < kReads; ++read) {
        const Reading reading = model.read(static_cast<uint64_t>(i % 2));
        if (!is_whole(reading)) ++torn;
        if (read % 100 == 0) model.wait(reading.version() + 1, 1000);
      }
      --left;
    });
  }
  for (uint64_t version = 2; left > 0; ++version) publish(publisher, parameters, version);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(torn, 0);
}

TEST(Model, a_read_costs_less_than_a_microsecond) {
#ifdef PENSTOCK_SANITIZED
  GTEST_SKIP() << "sanitizers take their time";
#endif
  const std::string name = a_name();
  Parameters parameters(two_blocks());
  Publisher publisher(name, parameters.layout());
  publish(publisher, parameters, 1);
  Model model(name);
  uint64_t best = UINT64_MAX;
  for (int round = 0; round < 200; ++round) {  // the machine may be busy
    const uint64_t begin = now_ns();
    for (int read = 0; read < 100; ++read) (void)model.read().values()[0];
    best = std::min(best, (now_ns() - begin) / 100);
  }
  EXPECT_LT(best, 1000u) << "nanoseconds";
  RecordProperty("nanoseconds", static_cast<int>(best));
}

size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

TEST(Model, attaching_and_closing_leaks_nothing) {
  const std::string name = a_name();
  Parameters parameters(two_blocks());
  Publisher publisher(name, parameters.layout());
  publish(publisher, parameters, 1);
  auto cycles = [&](int count) {
    for (int i = 0; i < count; ++i) {
      Model model(name);
      const Tensor kept = model.read().at("w");
      publish(publisher, parameters, publisher.publish(parameters) + 1);
    }
    ASSERT_TRUE(eventually([&] { return publisher.readers() == 0; }));
  };
  auto mappings = [] {  // of weights: a sanitizer has more and more of its own
    std::ifstream maps("/proc/self/maps");
    int count = 0;
    for (std::string line; std::getline(maps, line);) {
      count += line.find("memfd:") != std::string::npos ? 1 : 0;
    }
    return count;
  };
  cycles(5);
  const size_t descriptors = open_descriptors();
  const auto maps = mappings();
  const uint64_t resident = os::process_resident_bytes();
  cycles(300);
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_LE(mappings(), maps);
#ifndef PENSTOCK_SANITIZED
  EXPECT_LT(os::process_resident_bytes(), resident + (8 << 20));
#else
  (void)resident;
#endif
  EXPECT_TRUE(publisher.holders().empty());
}

TEST(Model, readers_beyond_the_table_are_refused_and_rows_are_reused) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 4096);
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < 2 * kReaders + 100) GTEST_SKIP() << "the limit on descriptors is too low";
  const std::string name = a_name();
  Parameters parameters(two_blocks(16));
  Publisher publisher(name, parameters.layout());
  publish(publisher, parameters, 1);
  std::vector<Peer> others;
  for (uint32_t i = 0; i < kReaders; ++i) {
    ASSERT_TRUE(eventually([&] {
      auto peer = connect_to_name("weights", name);
      if (peer) others.push_back(std::move(*peer));
      return peer.has_value();
    }));
  }
  ASSERT_TRUE(eventually([&] { return publisher.readers() == kReaders; }));
  EXPECT_TRUE(has(message_of(Code::kOutOfMemory, [&] { Model model(name); }), "1024 readers"));
  publish(publisher, parameters, 2);
  others.pop_back();
  ASSERT_TRUE(eventually([&] { return publisher.readers() == kReaders - 1; }));
  EXPECT_EQ(Model(name).version(), 2u);
}

// Serves the name, and calls `to` for each connection, until destroyed.
class ForeignServer {
 public:
  ForeignServer(const std::string& name, std::function<void(int)> to)
      : server_(serve_name("weights", name)), thread_([this, to] {
          std::vector<Peer> peers;
          while (!stop_) {
            bool failed;
            if (auto peer = accept_peer(server_.get(), failed)) {
              to(peer->fd.get());
              peers.push_back(std::move(*peer));
            }
            std::this_thread::yield();
          }
        }) {}
  ~ForeignServer() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  net::SocketFile server_;
  std::thread thread_;
};

TEST(Model, a_process_with_the_name_that_is_no_learner_is_refused) {
  const std::string pid = std::to_string(getpid());
  auto attach = [&](Code code, int64_t timeout_ns, std::function<void(int)> to) {
    const std::string name = a_name();
    ForeignServer server(name, std::move(to));
    return message_of(code, [&] { Model(name, {.timeout_ns = timeout_ns}); });
  };
  constexpr int64_t kLong = 30'000'000'000, kShort = 200'000'000;
  auto say = [](const void* bytes, size_t size) {
    return [=, text = std::string(static_cast<const char*>(bytes), size)](int fd) {
      (void)!::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    };
  };
  const std::string garbage(1000, 'x');
  EXPECT_TRUE(has(attach(Code::kInvalidArgument, kLong, say(garbage.data(), garbage.size())),
                  "process " + pid + ", which has the name"));
  attach(Code::kInvalidArgument, kLong, say("hello", 5));
  const Greeting no_descriptor;
  attach(Code::kInvalidArgument, kLong, say(&no_descriptor, sizeof(no_descriptor)));
  const std::string silent = attach(Code::kTimeout, kShort, [](int) {});
  EXPECT_TRUE(has(silent, "process " + pid) && has(silent, "does not answer")) << silent;
  attach(Code::kTimeout, kShort, say(&no_descriptor, 11));  // and then sends nothing more
  attach(Code::kTimeout, kShort, [](int fd) { shutdown(fd, SHUT_RDWR); });
  const auto memory = WeightsMemory::make(two_blocks(16));
  attach(Code::kInvalidArgument, kLong,
         [&](int fd) { send_greeting(fd, {.row = kReaders}, memory->fd()); });
  os::Fd empty = os::memory_file("empty");
  attach(Code::kInvalidArgument, kLong, [&](int fd) { send_greeting(fd, {}, empty.get()); });
  const size_t before = open_descriptors();
  attach(Code::kInvalidArgument, kLong, [&](int fd) { send_greeting(fd, {}, empty.get()); });
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Publisher, a_name_has_one_learner_at_a_time) {
  const std::string name = a_name();
  {
    Publisher first(name, two_blocks());
    EXPECT_TRUE(has(message_of(Code::kInvalidArgument, [&] { Publisher(name, two_blocks()); }),
                    "process " + std::to_string(getpid()) + " serves it"));
    EXPECT_TRUE(eventually([&] { return first.readers() == 0; }));
  }
  EXPECT_NO_THROW(Publisher(name, two_blocks()));
}

TEST(Publisher, names_the_holders_of_versions_when_there_is_no_space_for_another) {
  const std::string name = a_name();
  Parameters parameters(two_blocks(16));
  Publisher publisher(name, parameters.layout());
  publish(publisher, parameters, 1);
  Model model(name);
  std::vector<Reading> held;
  for (uint32_t i = 1; i < kSlots; ++i) {
    held.push_back(model.read());
    publish(publisher, parameters, i + 1);
  }
  held.push_back(model.read());
  EXPECT_TRUE(has(message_of(Code::kOutOfMemory, [&] { publish(publisher, parameters, 1000); }),
                  "held by process " + std::to_string(getpid()) + ", which must end a read()"));
  held.pop_back();
  held.pop_back();
  EXPECT_EQ(publish(publisher, parameters, 1001), 1001u);
  EXPECT_EQ(model.read().version(), 1001u);
}

}  // namespace
}  // namespace penstock::train
