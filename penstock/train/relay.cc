#include "penstock/train/relay.h"

#include <algorithm>
#include <array>
#include <utility>

#include "penstock/base/byte_reader.h"
#include "penstock/base/clock.h"
#include "penstock/base/error.h"

namespace penstock::train {
namespace {

constexpr uint64_t kMaxLayoutBytes = uint64_t{64} << 20;
constexpr double kSliceS = 0.05;  // between two looks for a newer sender
constexpr double kAnswerS = 60;   // for the receiver to publish a version that has arrived

// Messages of the sender; each version is answered with a head of kPublished, or kRefused and the
// text of an error.
enum class RelayKind : uint32_t { kLayout = 1, kVersion = 2, kPublished = 3, kRefused = 4 };

struct RelayHead {
  static constexpr uint32_t kMagic = 0x314c5250;  // "PRL1"
  uint32_t magic = kMagic;
  RelayKind kind = RelayKind::kLayout;
  uint64_t version = 0;
};

std::span<const std::byte> relay_bytes(const RelayHead& head) {
  return std::as_bytes(std::span(&head, 1));
}

RelayHead relay_head(const net::Received& message) {
  ByteReader reader{message.head, Code::kDataLoss, "relay"};
  const auto head = reader.get<RelayHead>();
  if (head.magic != RelayHead::kMagic) {
    throw Error(Code::kDataLoss, "relay", "the other end is no relay");
  }
  return head;
}

}  // namespace

// ---- the sender ---------------------------------------------------------------------------------

RelaySender::RelaySender(std::shared_ptr<Model> model, std::string address,
                         net::ConnectOptions options)
    : model_(std::move(model)), address_(std::move(address)), options_(std::move(options)) {}

void RelaySender::connect() {
  sent_.reset();
  connection_ = net::connect(address_, options_);
  const std::string layout = model_->layout().to_json();
  const std::array body{std::as_bytes(std::span(layout))};
  connection_->send(relay_bytes({.kind = RelayKind::kLayout}), body);
}

std::optional<RelaySender::Sent> RelaySender::send(double timeout_s) try {
  if (!connection_) connect();
  // A learner that was started again counts from a lower version.
  if (sent_ && !model_->wait(*sent_ + 1, static_cast<int64_t>(timeout_s * 1e9)) &&
      model_->version() == *sent_) {
    if (!connection_->idle()) throw Error(Code::kClosed, "relay", address_ + " is gone");
    return std::nullopt;
  }
  const uint64_t began = now_ns();
  const Reading reading = model_->read();
  const std::array body{std::as_bytes(reading.values())};
  connection_->send(relay_bytes({.kind = RelayKind::kVersion, .version = reading.version()}), body);
  const auto answer = connection_->receive(kAnswerS);
  if (!answer) throw Error(Code::kClosed, "relay", address_ + " left");
  if (relay_head(*answer).kind != RelayKind::kPublished) {
    std::string why(answer->body_bytes, '\0');
    connection_->receive_body(std::as_writable_bytes(std::span(why)));
    throw Error(Code::kSystem, "relay", address_ + ": " + why);
  }
  Sent sent{.version = reading.version(),
            .bytes = body[0].size(),
            .seconds = 1e-9 * static_cast<double>(now_ns() - began)};
  if (sent_ && reading.version() > *sent_) sent.skipped = reading.version() - *sent_ - 1;
  sent_ = reading.version();
  return sent;
} catch (...) {
  connection_.reset();
  throw;
}

// ---- the receiver -------------------------------------------------------------------------------

RelayReceiver::RelayReceiver(std::string name, const std::string& address,
                             net::ListenOptions options)
    : name_(std::move(name)), listener_(address, std::move(options)) {}

std::optional<RelayReceiver::Received> RelayReceiver::receive(double timeout_s) try {
  const Deadline end(timeout_s);
  for (;;) {
    if (auto newer = listener_.accept(connection_ ? 0 : end.left_s())) {
      connection_ = std::move(newer);
    }
    if (!connection_) return std::nullopt;
    std::optional<net::Received> message;
    try {
      message = connection_->receive(std::min(kSliceS, end.left_s()));
    } catch (const Error& error) {
      if (error.code() != Code::kTimeout || connection_->closed()) throw;
      if (end.passed()) return std::nullopt;
      continue;
    }
    if (!message) {
      connection_.reset();
      continue;
    }
    const RelayHead head = relay_head(*message);
    if (head.kind == RelayKind::kVersion) return take_version(head.version, message->body_bytes);
    if (head.kind != RelayKind::kLayout) {
      throw Error(Code::kDataLoss, "relay", "the other end sends no weights");
    }
    take_layout(message->body_bytes);
  }
} catch (...) {
  connection_.reset();
  throw;
}

void RelayReceiver::take_layout(uint64_t bytes) {
  if (bytes > kMaxLayoutBytes) throw Error(Code::kDataLoss, "relay", "the layout is too large");
  std::string json(bytes, '\0');
  connection_->receive_body(std::as_writable_bytes(std::span(json)));
  Layout layout = Layout::from_json(json);
  if (publisher_ && publisher_->layout() == layout) return;
  publisher_.reset();
  try {
    publisher_ = std::make_unique<Publisher>(name_, std::move(layout));
  } catch (const Error& error) {
    const std::string why = error.what();
    const std::array body{std::as_bytes(std::span(why))};
    connection_->send(relay_bytes({.kind = RelayKind::kRefused}), body);
    throw;
  }
}

// The floats go from the connection straight into the memory that readers map.
RelayReceiver::Received RelayReceiver::take_version(uint64_t version, uint64_t bytes) {
  if (!publisher_ || bytes != publisher_->layout().floats() * sizeof(float)) {
    throw Error(Code::kDataLoss, "relay", "weights of another size than the layout's");
  }
  const uint64_t published = publisher_->publish(
      [&](std::span<float> into) { connection_->receive_body(std::as_writable_bytes(into)); },
      version);
  connection_->send(relay_bytes({.kind = RelayKind::kPublished, .version = published}));
  return {version, published};
}

}  // namespace penstock::train
