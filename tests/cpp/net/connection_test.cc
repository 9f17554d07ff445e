#include "penstock/net/connection.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <numeric>
#include <thread>

#include "penstock/base/error.h"
#include "tests/cpp/net/line.h"

namespace penstock::net {
namespace {

using testing::code_of;
using testing::kSecret;
using testing::Line;
using testing::pattern;
using testing::RawLine;
using testing::text_of;

struct Kind {
  const char* name;
  const char* address;
  const char* secret = "";
  bool encrypt = false;
};

class EveryKind : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (address()[0] != 't' || address().find('[') == std::string::npos) return;
    try {
      Listener probe(address());
    } catch (const Error&) {
      GTEST_SKIP() << "this machine has no IPv6";
    }
  }
  std::string address() const { return GetParam().address; }
  LinkOptions options() const { return {{}, GetParam().secret, GetParam().encrypt}; }
};

constexpr char kIPv4[] = "tcp://127.0.0.1:0";
INSTANTIATE_TEST_SUITE_P(Connection, EveryKind,
                         ::testing::Values(Kind{"ipv4", kIPv4}, Kind{"ipv6", "tcp://[::1]:0"},
                                           Kind{"unix", "unix:@"}, Kind{"secret", kIPv4, kSecret},
                                           Kind{"encrypted", kIPv4, kSecret, true}),
                         [](const auto& it) { return std::string(it.param.name); });

TEST_P(EveryKind, messages_come_as_they_were_sent) {
  Line line(address(), options());
  const auto body = pattern(5'000'000);
  const std::span<const std::byte> whole(body);
  std::thread sender([&] {
    line.a->send(bytes_of("one"));
    const std::span<const std::byte> parts[] = {whole.first(10), {}, whole.subspan(10)};
    line.a->send(bytes_of("two"), parts);
    line.a->send({});
  });
  EXPECT_EQ(text_of(line.b->receive(kForEver)->head), "one");
  auto two = line.b->receive(kForEver);
  EXPECT_EQ(text_of(two->head), "two");
  ASSERT_EQ(two->body_bytes, body.size());
  std::vector<std::byte> got(body.size());
  line.b->receive_body(std::span(got).first(4097));
  EXPECT_EQ(line.b->body_left(), body.size() - 4097);
  line.b->receive_body(std::span(got).subspan(4097));
  EXPECT_TRUE(got == body);
  EXPECT_TRUE(line.b->receive(kForEver)->head.empty());
  sender.join();
}

// Between two messages, and between parts of a body, the next bytes may be few.
TEST_P(EveryKind, small_messages_arrive_between_large_ones) {
  Line line(address(), options());
  const auto body = pattern(4 << 20);
  const std::span<const std::byte> parts[] = {body};
  std::thread echo([&] {
    while (auto message = line.b->receive(kForEver)) {
      std::vector<std::byte> got(message->body_bytes);
      const size_t cut = std::min(got.size(), size_t{3} << 20);
      line.b->receive_body(std::span(got).first(cut));
      line.b->receive_body(std::span(got).subspan(cut));
      const std::span<const std::byte> back[] = {got};
      line.b->send(message->head, back);
    }
  });
  for (int round = 0; round < 3; ++round) {
    line.a->send(bytes_of("large"), parts);
    EXPECT_EQ(text_of(line.a->receive(60)->head), "large");
    std::vector<std::byte> got(line.a->body_left());
    line.a->receive_body(got);
    EXPECT_TRUE(got == body);
    line.a->send(bytes_of("small"));
    EXPECT_EQ(text_of(line.a->receive(60)->head), "small");
  }
  line.a->close();
  echo.join();
}

TEST_P(EveryKind, a_body_of_thousands_of_parts_is_whole) {
  Line line(address(), options());
  const auto body = pattern(3'000'000);
  std::vector<std::span<const std::byte>> parts;
  size_t at = 0;
  for (size_t i = 0; at < body.size(); ++i) {
    const size_t size = std::min(i % 1000, body.size() - at);
    parts.push_back(std::span(body).subspan(at, size));
    at += size;
  }
  ASSERT_GT(parts.size(), 5000u);
  std::thread sender([&] { line.a->send(bytes_of("many"), parts); });
  ASSERT_EQ(line.b->receive(kForEver)->body_bytes, body.size());
  std::vector<std::byte> got(body.size());
  line.b->receive_body(got);
  EXPECT_TRUE(got == body);
  sender.join();
}

TEST_P(EveryKind, what_nobody_read_is_skipped) {
  Line line(address(), options());
  const auto body = pattern(2'000'000);
  const std::span<const std::byte> parts[] = {body};
  std::thread sender([&] {
    line.a->send(bytes_of("first"), parts);
    line.a->send(bytes_of("second"));
  });
  EXPECT_EQ(line.b->receive(kForEver)->body_bytes, body.size());
  EXPECT_EQ(text_of(line.b->receive(kForEver)->head), "second");
  sender.join();
}

TEST_P(EveryKind, a_late_message_is_a_timeout_and_may_still_come) {
  Line line(address(), options());
  EXPECT_EQ(code_of([&] { line.b->receive(0.01); }), Code::kTimeout);
  EXPECT_EQ(code_of([&] { line.b->receive(0); }), Code::kTimeout);
  line.a->send(bytes_of("late"));
  EXPECT_EQ(text_of(line.b->receive(kForEver)->head), "late");
}

TEST_P(EveryKind, an_end_in_good_order_is_told_from_a_cut) {
  Line good(address(), options());
  good.a->send(bytes_of("last"));
  good.a.reset();
  EXPECT_EQ(text_of(good.b->receive(kForEver)->head), "last");
  EXPECT_FALSE(good.b->receive(kForEver));
  EXPECT_FALSE(good.b->receive(kForEver));

  RawLine killed(address(), options());
  killed.a.reset();
  EXPECT_EQ(code_of([&] { killed.b->receive(kForEver); }), Code::kClosed);
  EXPECT_TRUE(killed.b->closed());
}

TEST_P(EveryKind, close_wakes_who_receives) {
  Line line(address(), options());
  Code code{};
  std::thread receiver([&] { code = code_of([&] { line.b->receive(kForEver); }); });
  line.b->close();
  receiver.join();
  EXPECT_EQ(code, Code::kClosed);
  EXPECT_EQ(code_of([&] { line.b->send(bytes_of("x")); }), Code::kClosed);
  EXPECT_FALSE(line.a->receive(kForEver));
}

TEST_P(EveryKind, close_wakes_who_sends) {
  Line line(address(), options());
  const auto body = pattern(1 << 20);
  const std::span<const std::byte> parts[] = {body};
  std::atomic<int> sent{0};
  Code code{};
  std::thread sender([&] {
    code = code_of([&] {
      for (;; ++sent) line.a->send(bytes_of("x"), parts);
    });
  });
  line.b->receive(kForEver);
  line.a->close();
  sender.join();
  EXPECT_EQ(code, Code::kClosed);
}

TEST_P(EveryKind, what_cannot_be_sent_is_refused_and_nothing_is_sent) {
  Line line(address(), options());
  const auto head = pattern(kMaxHeadBytes + 1);
  EXPECT_EQ(code_of([&] { line.a->send(head); }), Code::kInvalidArgument);
  line.a->send(std::span(head).first(kMaxHeadBytes));
  EXPECT_EQ(line.b->receive(kForEver)->head.size(), kMaxHeadBytes);
  EXPECT_EQ(code_of([&] {
              std::byte one;
              line.b->receive_body(std::span(&one, 1));
            }),
            Code::kInvalidArgument);
}

TEST(Connection, descriptors_travel_between_processes_of_a_host) {
  Line line("unix:@");
  ASSERT_TRUE(line.a->local());
  os::Fd memory = os::memory_file("sent");
  ASSERT_EQ(write(memory.get(), "inside", 6), 6);
  line.a->send(bytes_of("take"), {}, memory.get());
  line.a->send(bytes_of("nothing"));
  auto got = line.b->receive(kForEver);
  ASSERT_TRUE(got->descriptor);
  char text[6];
  EXPECT_EQ(pread(got->descriptor.get(), text, 6, 0), 6);
  EXPECT_EQ(std::string(text, 6), "inside");
  EXPECT_FALSE(line.b->receive(kForEver)->descriptor);

  Line far("tcp://127.0.0.1:0");
  EXPECT_FALSE(far.a->local());
  EXPECT_EQ(code_of([&] { far.a->send({}, {}, memory.get()); }), Code::kInvalidArgument);
}

}  // namespace
}  // namespace penstock::net
