#include "penstock/train/relay.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "tests/cpp/train/refusals.h"

namespace penstock::train {
namespace {

using testing::message_of;

class RelayTest : public ::testing::Test {
 protected:
  static constexpr char kRelaySecret[] = "a secret of tests";

  void publish(float value, uint64_t version) {
    parameters_.slab().values()[0] = value;
    parameters_.slab().version().store(version);
    learner_->publish(parameters_);
  }
  std::unique_ptr<RelayReceiver> receiver() const {
    net::ListenOptions options;
    options.secret = kRelaySecret;
    return std::make_unique<RelayReceiver>(name_ + "-copy", "tcp://127.0.0.1:0", options);
  }
  std::unique_ptr<RelaySender> sender(const RelayReceiver& to) const {
    net::ConnectOptions options;
    options.secret = kRelaySecret;
    return std::make_unique<RelaySender>(std::make_shared<Model>(name_), to.address(), options);
  }
  // Sends one version while the receiver takes it.
  static RelaySender::Sent relayed(RelaySender& from, RelayReceiver& to, double timeout_s = 5) {
    std::optional<RelayReceiver::Received> received;
    std::thread taking([&] {
      while (!received) received = to.receive(5);
    });
    std::optional<RelaySender::Sent> sent;
    while (!sent) sent = from.send(timeout_s);
    taking.join();
    EXPECT_EQ(sent->version, received->version);
    return *sent;
  }

  const std::string name_ = "relay-" + std::to_string(getpid());
  const Layout layout_{{"w", {1000}}};
  const Parameters parameters_{layout_};
  std::unique_ptr<Publisher> learner_ = std::make_unique<Publisher>(name_, layout_);
};

TEST_F(RelayTest, readers_see_whole_versions_and_skipped_ones_are_counted) {
  publish(1, 1);
  const auto to = receiver();
  const auto from = sender(*to);
  EXPECT_EQ(relayed(*from, *to).bytes, layout_.floats() * sizeof(float));
  Model copy(name_ + "-copy");
  EXPECT_EQ(copy.version(), 1u);
  EXPECT_EQ(copy.read().values()[0], 1);
  EXPECT_FALSE(from->send(0.01));
  for (uint64_t version = 2; version <= 5; ++version) publish(static_cast<float>(version), version);
  EXPECT_EQ(relayed(*from, *to).skipped, 3u);
  EXPECT_EQ(copy.version(), 5u);
  EXPECT_EQ(copy.read().values()[0], 5);
}

TEST_F(RelayTest, a_learner_and_a_sender_that_start_again_continue) {
  publish(7, 7);
  const auto to = receiver();
  auto from = sender(*to);
  relayed(*from, *to);
  Model copy(name_ + "-copy");
  // The newest sender replaces an earlier one that has not ended.
  const auto second = sender(*to);
  publish(8, 8);
  relayed(*second, *to);
  EXPECT_EQ(copy.read().values()[0], 8);
  message_of(Code::kClosed, [&] {
    publish(9, 9);
    from->send(5);
  });
  // A learner that was started again counts from a lower version; readers see ascending ones.
  learner_.reset();
  learner_ = std::make_unique<Publisher>(name_, layout_);
  publish(3, 3);
  while (copy.read().values()[0] != 3) relayed(*second, *to, 0.1);
  EXPECT_GT(copy.version(), 8u);
}

TEST_F(RelayTest, invalid_messages_publish_nothing) {
  publish(1, 1);
  const auto to = receiver();
  const auto from = sender(*to);
  relayed(*from, *to);
  net::ConnectOptions options;
  options.secret = kRelaySecret;
  for (const size_t bytes : {0, 3, 16, 17}) {
    std::thread sending([&] {
      try {
        const auto line = net::connect(to->address(), options);
        line->send(std::vector<std::byte>(bytes, std::byte{0x51}));
        line->receive(5);
      } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the receiver disconnects
      }
    });
    message_of(Code::kDataLoss, [&] {
      while (!to->receive(5)) {
      }
    });
    sending.join();
  }
  Model copy(name_ + "-copy");
  EXPECT_EQ(copy.version(), 1u);
}

}  // namespace
}  // namespace penstock::train
