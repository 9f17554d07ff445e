#include <gtest/gtest.h>

#include <thread>

#include "tests/cpp/net/proxy.h"

// Connections over a network that cuts, freezes, trickles and repeats.
namespace penstock::net {
namespace {

using testing::Fault;
using testing::pattern;
using testing::Proxy;
using testing::text_of;

LinkOptions options(bool encrypt) {
  LinkOptions result;
  result.stall_timeout_s = 0.3;
  result.secret = encrypt ? "a secret of tests" : "";
  result.encrypt = encrypt;
  return result;
}

// Answers each message with the same head and body, one connection after the other.
class Echo {
 public:
  explicit Echo(const LinkOptions& link) : listener_("tcp://127.0.0.1:0", ListenOptions{link}) {
    thread_ = std::thread([this, patience_s = link.stall_timeout_s] {
      while (auto line = listener_.accept(kForEver)) {
        try {
          while (auto got = line->receive(patience_s)) {
            std::vector<std::byte> body(got->body_bytes);
            line->receive_body(body);
            const std::span<const std::byte> parts[] = {body};
            line->send(got->head, parts);
          }
        } catch (const Error&) {
          // This connection is broken; take the next one.
        }
      }
    });
  }
  ~Echo() {
    listener_.close();
    thread_.join();
  }
  std::string address() const { return listener_.address(); }

 private:
  Listener listener_;
  std::thread thread_;
};

// Whether the answer equals the message; throws if there is no answer.
bool echoes(const std::string& address, const LinkOptions& link, size_t bytes,
            double patience_s = 60) {
  auto line = connect(address, ConnectOptions{link, patience_s});
  const auto body = pattern(bytes);
  const std::span<const std::byte> parts[] = {body};
  line->send(bytes_of("say"), parts);
  auto got = line->receive(patience_s);
  if (!got) return false;
  std::vector<std::byte> back(got->body_bytes);
  line->receive_body(back);
  return text_of(got->head) == "say" && back == body;
}

bool echoes_at_last(const std::string& address, const LinkOptions& link, size_t bytes) {
  for (int attempt = 0; attempt < 50; ++attempt) {
    try {
      return echoes(address, link, bytes);
    } catch (const Error&) {
      // Try again.
    }
  }
  return false;
}

TEST(Network, what_comes_through_is_whole_or_an_error_and_the_next_attempt_succeeds) {
  constexpr size_t kBytes = 1000;
  for (const bool encrypt : {false, true}) {
    for (const Fault::Kind kind : {Fault::kCut, Fault::kFreeze, Fault::kRepeat}) {
      // TCP itself never repeats bytes: only encryption detects inserted ones.
      if (kind == Fault::kRepeat && !encrypt) continue;
      std::vector<Fault> plan;
      const size_t step = kind == Fault::kFreeze ? 700 : 97;
      for (size_t after = 1; after < kBytes; after += step) {
        plan.push_back({kind, after, true});
        plan.push_back({kind, after, false});
      }
      Echo echo(options(encrypt));
      Proxy proxy(echo.address(), plan);
      size_t failed = 0;
      while (proxy.connections() < plan.size()) {
        try {
          // The messages before the fault may have been sufficient.
          EXPECT_TRUE(echoes(proxy.address(), options(encrypt), kBytes, 0.3));
        } catch (const Error& error) {
          EXPECT_TRUE(error.code() == Code::kClosed || error.code() == Code::kTimeout ||
                      error.code() == Code::kDataLoss || error.code() == Code::kInvalidArgument)
              << error.what();
          ++failed;
        }
      }
      EXPECT_GT(failed, plan.size() / 2);
      // The network works again; only a very busy machine makes another attempt necessary.
      LinkOptions patient = options(encrypt);
      patient.stall_timeout_s = 60;
      EXPECT_TRUE(echoes_at_last(proxy.address(), patient, kBytes));
    }
  }
}

TEST(Network, what_trickles_in_is_whole) {
  for (const bool encrypt : {false, true}) {
    LinkOptions link = options(encrypt);
    link.stall_timeout_s = 60;
    Echo echo(link);
    Proxy proxy(echo.address(), {{Fault::kTrickle, 2000, true}, {Fault::kTrickle, 2000, false}});
    EXPECT_TRUE(echoes(proxy.address(), link, 3000));
    EXPECT_TRUE(echoes(proxy.address(), link, 3000));
    EXPECT_EQ(proxy.faults(), 2u);
  }
}

}  // namespace
}  // namespace penstock::net
