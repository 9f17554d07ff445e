#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/base/descriptor_message.h"
#include "tests/cpp/net/line.h"

// A connection whose other end, or network, misbehaves.
namespace penstock::net {
namespace {

using testing::code_of;
using testing::kSecret;
using testing::Line;
using testing::pattern;
using testing::RawLine;
using testing::text_of;

using Bytes = std::vector<std::byte>;

constexpr char kTcp[] = "tcp://127.0.0.1:0";
constexpr char kUnix[] = "unix:@";

LinkOptions encrypted() { return {{}, kSecret, true}; }

// The bytes of a message, with `change` applied to its header.
template <typename Change>
Bytes wire(std::string_view head, size_t body_bytes, Tls* tls, Change change) {
  FrameHeader header;
  header.head_bytes = static_cast<uint32_t>(head.size());
  header.body_bytes = body_bytes;
  change(header);
  Bytes result;
  const Bytes body = pattern(body_bytes);
  for (const auto part :
       {std::as_bytes(std::span(&header, 1)), bytes_of(head), std::span<const std::byte>(body)}) {
    if (tls != nullptr) {
      tls->encrypt(part);
      tls->take_outgoing(result);
    } else {
      result.insert(result.end(), part.begin(), part.end());
    }
  }
  return result;
}
Bytes wire(std::string_view head, size_t body_bytes, Tls* tls = nullptr) {
  return wire(head, body_bytes, tls, [](FrameHeader&) {});
}

// Receives everything, including bodies, until the end. The received part of the last body is in
// memory of exactly its size, so a sanitizer detects errors.
size_t take_all(Connection& connection) {
  size_t messages = 0;
  while (auto got = connection.receive(60)) {
    Bytes body(got->body_bytes);
    connection.receive_body(body);
    ++messages;
  }
  return messages;
}

TEST(Faults, a_line_cut_anywhere_is_closed_and_whole_messages_before_it_count) {
  const Bytes first = wire("first", 3);
  const Bytes second = wire("head", 40);
  Bytes all = first;
  all.insert(all.end(), second.begin(), second.end());
  for (const char* kind : {kTcp, kUnix}) {
    for (size_t keep = 0; keep <= all.size(); keep += keep % 7 + 1) {
      RawLine line(kind);
      line.send(std::span(all).first(keep));
      line.a.reset();
      size_t whole = 0;
      EXPECT_EQ(code_of([&] {
                  for (;;) {
                    auto got = line.b->receive(60);
                    Bytes body(got->body_bytes);
                    line.b->receive_body(body);
                    ++whole;
                  }
                }),
                Code::kClosed);
      EXPECT_EQ(whole, keep == all.size() ? 2u : keep >= first.size() ? 1u : 0u);
    }
  }
}

TEST(Faults, an_encrypted_line_cut_or_changed_anywhere_yields_nothing_wrong) {
  for (size_t at = 0, size = 1; at < size; at += at % 5 + 1) {
    for (const bool cut : {true, false}) {
      RawLine line(kTcp, encrypted());
      Bytes all = wire("head", 100, line.tls.get());
      size = all.size();
      if (cut) {
        all.resize(at);
      } else {
        all[at] ^= std::byte{64};
      }
      line.send(all);
      line.a.reset();
      const Code code = code_of([&] { take_all(*line.b); });
      // The receiver waits for the rest of a record with a larger length.
      EXPECT_TRUE(code == Code::kClosed || (!cut && code == Code::kDataLoss));
      EXPECT_TRUE(line.b->closed());
    }
  }
}

TEST(Faults, an_encrypted_message_repeated_or_left_out_does_not_open) {
  for (const bool repeated : {true, false}) {
    RawLine line(kTcp, encrypted());
    const Bytes first = wire("first", 0, line.tls.get());
    const Bytes second = wire("second", 0, line.tls.get());
    const Bytes third = wire("third", 0, line.tls.get());
    line.send(first);
    line.send(repeated ? first : third);
    EXPECT_EQ(text_of(line.b->receive(60)->head), "first");
    EXPECT_EQ(code_of([&] { line.b->receive(60); }), Code::kDataLoss);
  }
}

TEST(Faults, bytes_that_come_one_by_one_are_a_message) {
  RawLine line(kTcp);
  const Bytes all = wire("head", 50);
  std::thread sender([&] {
    for (const std::byte& each : all) line.send(std::span(&each, 1));
  });
  EXPECT_EQ(text_of(line.b->receive(60)->head), "head");
  Bytes body(50);
  for (std::byte& each : body) line.b->receive_body(std::span(&each, 1));
  EXPECT_EQ(body, pattern(50));
  sender.join();
}

TEST(Faults, a_head_that_comes_late_is_waited_for_again) {
  for (const bool is_encrypted : {false, true}) {
    RawLine line(kTcp, is_encrypted ? encrypted() : LinkOptions{});
    const Bytes all = wire("a head", 0, line.tls.get());
    for (const std::byte& each : all) {
      EXPECT_EQ(code_of([&] { line.b->receive(0); }), Code::kTimeout);
      line.send(std::span(&each, 1));
    }
    EXPECT_EQ(text_of(line.b->receive(60)->head), "a head");
  }
}

TEST(Faults, what_is_no_message_is_refused_and_others_are_unharmed) {
  using Change = void (*)(FrameHeader&);
  const Change changes[] = {
      [](FrameHeader& header) { header.kind ^= 1u << 31; },
      [](FrameHeader& header) { header.flags = 2; },
      [](FrameHeader& header) { header.flags = FrameHeader::kDescriptor; },
      [](FrameHeader& header) { header.reserved = 1; },
      [](FrameHeader& header) { header.reserved_too = 1; },
      [](FrameHeader& header) { header.head_bytes = kMaxHeadBytes + 1; },
      [](FrameHeader& header) { header.head_bytes = ~0u; },
      [](FrameHeader& header) { header.body_bytes = 1001; },
      [](FrameHeader& header) { header.body_bytes = ~0ull; },
  };
  for (const char* kind : {kTcp, kUnix}) {
    LinkOptions options;
    options.max_body_bytes = 1000;
    Line well(kind);
    for (const Change change : changes) {
      RawLine line(kind, options);
      line.send(wire("head", 0, nullptr, change));
      EXPECT_EQ(code_of([&] { line.b->receive(60); }), Code::kDataLoss);
      EXPECT_EQ(code_of([&] { line.b->receive(60); }), Code::kClosed);
      EXPECT_EQ(code_of([&] { line.b->send({}); }), Code::kClosed);
      std::byte end;
      EXPECT_LE(recv(line.a.get(), &end, 1, 0), 0) << "the line is closed";
    }
    RawLine most(kind, options);
    most.send(wire("head", 1000));
    EXPECT_EQ(most.b->receive(60)->body_bytes, 1000u);
    well.a->send(bytes_of("well"));
    EXPECT_EQ(text_of(well.b->receive(60)->head), "well");
  }
}

TEST(Faults, a_descriptor_that_was_not_announced_is_refused) {
  RawLine line(kUnix);
  const os::Fd memory = os::memory_file("sent");
  const Bytes all = wire("head", 0);
  ASSERT_EQ(send_message(line.a.get(), all, memory.get(), 0), static_cast<ssize_t>(all.size()));
  EXPECT_EQ(code_of([&] { line.b->receive(60); }), Code::kDataLoss);
}

TEST(Faults, an_end_that_stops_in_the_middle_of_a_body_is_given_up) {
  LinkOptions options;
  options.stall_timeout_s = 0.05;
  for (const char* kind : {kTcp, kUnix}) {
    RawLine line(kind, options);
    const Bytes all = wire("head", 1000);
    line.send(std::span(all).first(all.size() - 1));
    Bytes body(line.b->receive(60)->body_bytes);
    EXPECT_EQ(code_of([&] { line.b->receive_body(body); }), Code::kTimeout);
    EXPECT_TRUE(line.b->closed());
    EXPECT_EQ(code_of([&] { line.b->receive(60); }), Code::kClosed);
  }
}

TEST(Faults, an_end_that_takes_nothing_is_given_up) {
  LinkOptions options;
  options.stall_timeout_s = 0.05;
  for (const char* kind : {kTcp, kUnix}) {
    Line line(kind, options);
    const Bytes body = pattern(1 << 20);
    const std::span<const std::byte> parts[] = {body};
    EXPECT_EQ(code_of([&] {
                for (;;) line.a->send({}, parts);
              }),
              Code::kTimeout);
    EXPECT_EQ(code_of([&] { line.a->send({}); }), Code::kClosed);
  }
}

struct Enough {};

// A connection whose ends check a callback while they wait, and give up at the third check.
LinkOptions impatient(LinkOptions options, int& looks) {
  options.while_waiting = [&looks] {
    if (++looks == 3) throw Enough();
  };
  return options;
}

TEST(Faults, who_waits_for_the_rest_of_a_body_looks_around) {
  for (const char* kind : {kTcp, kUnix}) {
    for (const bool is_encrypted : {false, true}) {
      if (is_encrypted && kind == kUnix) continue;
      int looks = 0;
      RawLine line(kind, impatient(is_encrypted ? encrypted() : LinkOptions{}, looks));
      const Bytes all = wire("head", 1000, line.tls.get());
      line.send(std::span(all).first(all.size() - 1));
      Bytes body(line.b->receive(60)->body_bytes);
      looks = 0;
      EXPECT_THROW(line.b->receive_body(body), Enough);
      EXPECT_EQ(looks, 3);
      EXPECT_EQ(code_of([&] { line.b->receive(60); }), Code::kClosed);
    }
  }
}

TEST(Faults, who_waits_for_room_to_send_looks_around) {
  for (const char* kind : {kTcp, kUnix}) {
    for (const bool is_encrypted : {false, true}) {
      if (is_encrypted && kind == kUnix) continue;
      int looks = 0;
      Line line(kind, impatient(is_encrypted ? encrypted() : LinkOptions{}, looks));
      const Bytes body = pattern(64 << 20);
      const std::span<const std::byte> parts[] = {body};
      EXPECT_THROW(line.a->send({}, parts), Enough);
      EXPECT_EQ(looks, 3);
      EXPECT_EQ(code_of([&] { line.a->send({}); }), Code::kClosed);
    }
  }
}

TEST(Faults, who_waits_for_the_beginning_of_a_message_looks_around) {
  for (const char* kind : {kTcp, kUnix}) {
    for (const bool is_encrypted : {false, true}) {
      if (is_encrypted && kind == kUnix) continue;
      int looks = 0;
      RawLine line(kind, impatient(is_encrypted ? encrypted() : LinkOptions{}, looks));
      EXPECT_EQ(code_of([&] { line.b->receive(0.15); }), Code::kTimeout);
      EXPECT_GE(looks, 1);
      EXPECT_LE(looks, 2);  // 2 if the machine was busy
      EXPECT_THROW(line.b->receive(60), Enough);
      EXPECT_EQ(looks, 3);
    }
  }
}

TEST(Faults, who_connects_to_one_that_is_stopped_looks_around) {
  const Listener stopped(kTcp);  // no thread is in accept()
  int looks = 0;
  const ConnectOptions options{impatient({}, looks), 60};
  EXPECT_THROW(connect(stopped.address(), options), Enough);
  EXPECT_EQ(looks, 3);
}

TEST(Faults, who_looks_around_gives_up_a_stall_no_later) {
  for (const char* kind : {kTcp, kUnix}) {
    std::atomic<int> looks = 0;
    LinkOptions options;
    options.stall_timeout_s = 0.35;
    options.while_waiting = [&] { ++looks; };
    RawLine line(kind, options);
    const Bytes all = wire("head", 1000);
    line.send(std::span(all).first(all.size() - 1));
    Bytes body(line.b->receive(60)->body_bytes);
    const uint64_t begin = now_ns();
    EXPECT_EQ(code_of([&] { line.b->receive_body(body); }), Code::kTimeout);
    EXPECT_GE(now_ns() - begin, 350'000'000u);
    EXPECT_GE(looks, 1);
    Line other(kind, options);
    const Bytes much = pattern(64 << 20);
    const std::span<const std::byte> parts[] = {much};
    EXPECT_EQ(code_of([&] { other.a->send({}, parts); }), Code::kTimeout);
  }
}

// The reader of a large body is not woken for a few bytes, which count as progress nevertheless.
TEST(Faults, a_large_body_that_comes_slowly_is_no_stall) {
  constexpr size_t kPiece = 60'000;
  for (const bool looks_around : {false, true}) {
    LinkOptions options;
    options.stall_timeout_s = 0.3;
    if (looks_around) options.while_waiting = [] {};
    RawLine line(kTcp, options);
    const Bytes all = wire("head", 1'500'000);
    const Bytes next = wire("next", 0);
    std::thread sender([&] {
      for (size_t at = 0; at < all.size(); at += kPiece) {
        if (at > 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
        line.send(std::span(all).subspan(at, std::min(kPiece, all.size() - at)));
      }
      line.send(next);
    });
    Bytes body(line.b->receive(60)->body_bytes);
    line.b->receive_body(body);
    EXPECT_TRUE(std::ranges::equal(body, std::span(all).last(body.size())));
    EXPECT_EQ(text_of(line.b->receive(60)->head), "next");
    sender.join();
  }
}

TEST(Faults, an_end_in_a_large_body_is_noticed_at_once) {
  for (const size_t sent : {100'000, 1'300'000}) {
    RawLine line(kTcp);
    const Bytes all = wire("head", 1'500'000);
    std::thread sender([&] {
      line.send(std::span(all).first(sent));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      line.a.reset();
    });
    Bytes body(line.b->receive(60)->body_bytes);
    EXPECT_EQ(code_of([&] { line.b->receive_body(body); }), Code::kClosed);
    sender.join();
  }
}

TEST(Faults, a_body_that_trickles_arrives_and_its_reader_looks_around) {
  int looks = 0;
  LinkOptions options;
  options.while_waiting = [&] { ++looks; };
  RawLine line(kTcp, options);
  const Bytes all = wire("head", 100);
  std::thread sender([&] {
    for (const std::byte& each : all) {
      line.send(std::span(&each, 1));
      poll(nullptr, 0, 5);
    }
  });
  Bytes body(line.b->receive(60)->body_bytes);
  line.b->receive_body(body);
  EXPECT_EQ(body, pattern(100));
  EXPECT_GE(looks, 2);
  sender.join();
}

TEST(Faults, a_reset_wakes_who_sends) {
  RawLine line(kTcp);
  const Bytes body = pattern(1 << 20);
  const std::span<const std::byte> parts[] = {body};
  Code code{};
  std::thread sender([&] {
    code = code_of([&] {
      for (;;) line.b->send({}, parts);
    });
  });
  std::byte one;
  ASSERT_EQ(recv(line.a.get(), &one, 1, 0), 1);
  line.a.reset();  // with unread bytes: a reset
  sender.join();
  EXPECT_EQ(code, Code::kClosed);
}

TEST(Faults, several_threads_messages_are_whole) {
  for (const LinkOptions& options : {LinkOptions{}, encrypted()}) {
    Line line(kTcp, options);
    constexpr size_t kThreads = 4, kEach = 50;
    std::vector<std::thread> threads;
    for (size_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        const Bytes body(100'000 + i, static_cast<std::byte>(i));
        const std::span<const std::byte> parts[] = {body};
        for (size_t k = 0; k < kEach; ++k) line.a->send(std::as_bytes(std::span(&i, 1)), parts);
      });
    }
    for (size_t k = 0; k < kThreads * kEach; ++k) {
      auto got = line.b->receive(60);
      size_t who;
      std::memcpy(&who, got->head.data(), sizeof(who));
      ASSERT_EQ(got->body_bytes, 100'000 + who);
      Bytes body(got->body_bytes);
      line.b->receive_body(body);
      EXPECT_EQ(body, Bytes(100'000 + who, static_cast<std::byte>(who)));
    }
    for (auto& each : threads) each.join();
  }
}

}  // namespace
}  // namespace penstock::net
