#include "penstock/online/mqtt_client.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"

namespace penstock::online {
namespace {

using mqtt::closed;
using mqtt::Type;

constexpr char kMqtt[] = "MQTT";
constexpr size_t kMaxOnTheirWay = 1000;
// Version 3.1.1: a broker does not say how many messages of QoS 2 it takes at once, and disconnects
// a client that sends more. mosquitto's default.
constexpr uint32_t kMaxInFlight2 = 20;
constexpr size_t kMaxUnreliableBytes = 16 << 20;
constexpr size_t kMaxOutBytes = 4 << 20;  // then no more is read, so no more has to be answered
constexpr double kFirstWaitS = 0.1, kLongestWaitS = 10;
constexpr double kPatienceS = 10;  // for the broker to answer
constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kLastsNs = 10 * kSecond;  // a connection of this time was no failure
constexpr std::byte kTakenOver{0x8E};        // a reason to disconnect
// A token is the connection's number, and that of the message in it.
constexpr int kNumberBits = 40;
constexpr uint64_t kNumbers = (uint64_t{1} << kNumberBits) - 1;

// For a client that only publishes.
class NoSink final : public MessageSink {
 public:
  bool put(const Message&) override { return false; }
  bool full() const override { return false; }
  void check() const override {}
  void ended(const std::string&) override {}
};
NoSink no_sink;

// An error that another try would not change.
bool is_final(const Error& error) { return error.code() == Code::kInvalidArgument; }

}  // namespace

MqttClient::MqttClient(MqttOptions options)
    : options_(std::move(options)),
      broker_{options_.host, options_.port, options_.tls},
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      wire_(wake_.get()),
      random_(std::random_device()()) {
  if (!wake_) throw Error::from_errno(errno, kMqtt, "cannot make an eventfd");
  if (options_.qos > 2) throw Error(Code::kInvalidArgument, kMqtt, "qos is 0, 1 or 2");
  for (const std::string& topic : options_.topics) mqtt::check_filter(topic);
  if (options_.tls) net::check_files(*options_.tls);
  if (!options_.clean_start && options_.client_id.empty()) {
    throw Error(Code::kInvalidArgument, kMqtt,
                "a session that is kept (clean_start=False) needs a client_id");
  }
}

MqttClient::~MqttClient() { stop(); }

void MqttClient::start(MessageSink& sink) {
  if (options_.topics.empty()) {
    throw Error(Code::kInvalidArgument, kMqtt, "there is no topic to subscribe to");
  }
  std::lock_guard lock(mutex_);
  if (started_) {
    throw Error(Code::kInvalidArgument, kMqtt,
                "this client is in use, or was; make another for another source");
  }
  begin(sink, true);
}

void MqttClient::start_publishing() {
  std::lock_guard lock(mutex_);
  if (!started_) begin(no_sink, false);
}

void MqttClient::begin(MessageSink& sink, bool subscribes) {
  if (ended_) throw closed("the client was stopped");
  started_ = true;
  pid_ = getpid();
  sink_ = &sink;
  subscribes_ = subscribes;
  thread_ = std::thread([this] {
    os::block_all_signals();
    run();
  });
}

void MqttClient::wake() {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

void MqttClient::acknowledge(std::span<const uint64_t> tokens) {
  {
    std::lock_guard lock(mutex_);
    safe_.insert(safe_.end(), tokens.begin(), tokens.end());
  }
  wake();
}

void MqttClient::space() { wake(); }

void MqttClient::stop() {
  if (pid_ != 0 && pid_ != getpid()) {  // a forked child: it has no such thread
    if (thread_.joinable()) thread_.detach();
    return;
  }
  stopping_.store(true, std::memory_order_release);
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  wake();
  std::lock_guard lock(joining_);
  if (thread_.joinable()) thread_.join();
}

std::string MqttClient::state() const {
  std::lock_guard lock(mutex_);
  const uint64_t connections = connections_.load();
  nlohmann::json state = {{"connected", connected_ && (subscribed_ || !subscribes_)},
                          {"reconnects", connections == 0 ? 0 : connections - 1},
                          {"received", received_count_.load()},
                          {"bytes", received_bytes_.load()},
                          {"acknowledged", acknowledged_.load()},
                          {"duplicates", duplicates_.load()},
                          {"published", published_.load()},
                          {"on_their_way", on_their_way_.size()},
                          {"unsent", unsent_}};
  if (!last_error_.empty()) state["error"] = last_error_;
  return state.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void MqttClient::publish(std::string_view topic, std::span<const std::byte> payload, int qos) {
  if (qos < 0 || qos > 2) throw Error(Code::kInvalidArgument, kMqtt, "qos is 0, 1 or 2");
  const auto level = static_cast<uint8_t>(qos);
  Bytes packet;
  mqtt::append(packet, options_.version, {topic, payload, level, 1});  // checks it
  if (pid_ != 0 && pid_ != getpid()) {
    throw closed("this client is the parent process's; make one in the forked child");
  }
  {
    std::unique_lock lock(mutex_);
    if (!started_) throw closed("the client is not started");
    wait_until(
        lock,
        [&] {
          return ended_ ||
                 (connections_ > 0 && (qos == 0 || on_their_way_.size() < kMaxOnTheirWay));
        },
        Deadline(kForEver));
    if (ended_) throw closed(last_error_.empty() ? "the client was stopped" : last_error_);
    if (packet.size() > max_sent_bytes_) {
      throw Error(Code::kInvalidArgument, kMqtt,
                  "a message of " + std::to_string(packet.size()) +
                      " bytes with its topic; the broker takes " + std::to_string(max_sent_bytes_));
    }
    if (qos == 0) {
      if (!connected_ || unreliable_.size() + packet.size() > kMaxUnreliableBytes) {
        ++unsent_;
        return;
      }
      unreliable_.insert(unreliable_.end(), packet.begin(), packet.end());
    } else {
      while (next_id_ == 0 || on_their_way_.count(next_id_) != 0) ++next_id_;
      on_their_way_[next_id_] = {std::string(topic), {payload.begin(), payload.end()}, level};
      to_send_.push_back(next_id_++);
    }
  }
  wake();
}

bool MqttClient::flush(double seconds) {
  if (pid_ != 0 && pid_ != getpid()) return true;
  std::unique_lock lock(mutex_);
  const auto sent = [&] { return unreliable_.empty() && !sending_ && on_their_way_.empty(); };
  wait_until(
      lock, [&] { return ended_ || !started_ || sent(); }, Deadline(seconds));
  return sent();
}

void MqttClient::wait_until(std::unique_lock<std::mutex>& lock, const std::function<bool()>& done,
                            const Deadline& deadline) {
  while (!changed_.wait_for(lock, std::chrono::milliseconds(100), done)) {
    if (deadline.passed()) return;
    if (!options_.while_waiting) continue;
    lock.unlock();
    options_.while_waiting();
    lock.lock();
  }
}

// ---- the thread --------------------------------------------------------------------------------

void MqttClient::run() {
  std::string why;
  uint32_t failures = 0;
  const Deadline first(options_.connect_timeout_s);
  while (!stopping()) {
    uint64_t connected_ns = 0;
    try {
      wire_.open(broker_, patience(), stopping_);
      hello();
      connected_ns = now_ns();
      receive();
    } catch (const Error& error) {
      std::lock_guard lock(mutex_);
      last_error_ = error.what();
      if (is_final(error) || (connections_ == 0 && first.passed())) why = last_error_;
    } catch (const std::exception& error) {
      why = error.what();
    }
    wire_.close();
    {
      std::lock_guard lock(mutex_);
      connected_ = false;
    }
    if (!why.empty() || stopping()) break;
    // A broker that ends each connection at once is not asked ten times a second.
    if (connected_ns != 0 && now_ns() - connected_ns > kLastsNs) failures = 0;
    wait_before_next(failures++);
  }
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
    if (!why.empty()) last_error_ = why;
  }
  changed_.notify_all();
  sink_->ended(why);
}

void MqttClient::wait_before_next(uint32_t failures) {
  const double most = std::min(kLongestWaitS, kFirstWaitS * (1 << std::min(failures, 10u)));
  const Deadline until(most * std::uniform_real_distribution<>(0.5, 1)(random_));
  while (!stopping() && !until.passed()) wait(false, 100);
}

double MqttClient::patience() const {
  return connections_.load() == 0 ? std::clamp(options_.connect_timeout_s, 1.0, kPatienceS)
                                  : kPatienceS;
}

// CONNECT and SUBSCRIBE; their answers are awaited, then messages are taken.
void MqttClient::hello() {
  ++connection_;
  arrived_.clear();
  first_arrived_ = 0;
  ping_sent_ns_ = last_ping_ns_ = 0;
  keep_alive_ns_ = options_.keep_alive_s * kSecond;
  {
    std::lock_guard lock(mutex_);
    safe_.clear();  // of the connection before
  }
  mqtt::Connect connect;
  connect.version = options_.version;
  connect.client_id = options_.client_id;
  connect.clean_start = options_.clean_start;
  connect.keep_alive_s = options_.keep_alive_s;
  connect.user = options_.user;
  connect.password = options_.password;
  connect.session_expiry_s = options_.clean_start ? 0 : options_.session_expiry_s;
  connect.max_packet_bytes = options_.max_packet_bytes;
  mqtt::append(wire_.out(), connect);

  const Deadline deadline(patience());
  std::optional<mqtt::Frame> frame;
  while (!frame) {
    if (stopping()) throw closed("the client was stopped");
    if (deadline.passed()) throw closed("the broker did not answer CONNECT");
    wait(true, 100);
    wire_.read();
    frame = wire_.front(options_.max_packet_bytes);
  }
  const mqtt::Connack connack = mqtt::read_connack(*frame, options_.version);
  wire_.pop(*frame);
  if (connack.code != 0) {
    throw Error(
        mqtt::lasts(connack.code, options_.version) ? Code::kInvalidArgument : Code::kClosed, kMqtt,
        "the broker at " + broker_.endpoint() + " refused the connection: " + connack.reason);
  }
  if (connack.keep_alive_s) keep_alive_ns_ = *connack.keep_alive_s * kSecond;
  if (!connack.session_present) received_.clear();
  // A subscription that the session has is not made again: the broker would send retained messages
  // again.
  const bool resumed = connack.session_present && has_subscribed_;
  if (subscribes_ && !resumed) {
    mqtt::append_subscribe(wire_.out(), options_.version, 0xFFFF, options_.topics, options_.qos);
  }
  std::lock_guard lock(mutex_);
  connections_.fetch_add(1);
  changed_.notify_all();
  connected_ = true;
  subscribed_ = resumed;
  max_sent_bytes_ = connack.max_packet_bytes;
  last_error_.clear();
  // The oldest first: identifiers are given in turn.
  in_flight_ = in_flight_2_ = 0;
  max_in_flight_ = connack.receive_maximum;
  to_send_.clear();
  const auto oldest = on_their_way_.lower_bound(next_id_);
  for (auto each = oldest; each != on_their_way_.end(); ++each) to_send_.push_back(each->first);
  for (auto each = on_their_way_.begin(); each != oldest; ++each) to_send_.push_back(each->first);
  if (!connack.session_present) {
    // The broker has forgotten what it had received and not yet released.
    for (auto& [id, message] : on_their_way_) message.sent = message.released = false;
  }
  unreliable_.clear();
  sending_ = false;
}

void MqttClient::receive() {
  while (!stopping()) {
    take_requests();
    const bool reads = !sink_->full() && wire_.unsent_bytes() < kMaxOutBytes;
    const bool waiting_in = reads && wire_.pending();
    const int64_t timeout_ms =
        keep_alive_ns_ == 0
            ? 1000
            : static_cast<int64_t>(std::clamp<uint64_t>(keep_alive_ns_ / 4 / 1'000'000, 10, 1000));
    wait(reads, waiting_in ? 0 : timeout_ms);
    if (!sink_->full()) {
      if (reads) wire_.read();
      handle_frames();
    }
    keep_alive();
  }
  take_requests();
  mqtt::append_disconnect(wire_.out());
  const Deadline deadline(1);
  while (wire_.unsent_bytes() != 0 && !deadline.passed()) wait(false, 50);
}

void MqttClient::wait(bool readable, int64_t timeout_ms) {
  if (!wire_.wait(readable, timeout_ms)) return;
  std::lock_guard lock(mutex_);
  if (std::exchange(sending_, false)) changed_.notify_all();
}

void MqttClient::handle_frames() {
  while (const auto frame = wire_.front(options_.max_packet_bytes)) {
    // A message that the sink has no space for stays on the wire.
    if (frame->type == Type::kPublish && sink_->full()) return;
    wire_.pop(*frame);
    handle(*frame);
  }
}

void MqttClient::handle(const mqtt::Frame& frame) {
  switch (frame.type) {
    case Type::kPublish:
      return take(mqtt::read_publish(frame, options_.version));
    case Type::kPubrel: {
      const auto released = mqtt::read_acknowledgement(frame, options_.version);
      received_.erase(released.id);
      return mqtt::append_acknowledgement(wire_.out(), Type::kPubcomp, released.id);
    }
    case Type::kPuback:
    case Type::kPubcomp: {
      const auto done = mqtt::read_acknowledgement(frame, options_.version);
      std::lock_guard lock(mutex_);
      return forget_published(done.id, done.code < 0x80);
    }
    case Type::kPubrec: {
      const auto arrived = mqtt::read_acknowledgement(frame, options_.version);
      std::lock_guard lock(mutex_);
      const auto found = on_their_way_.find(arrived.id);
      if (arrived.code >= 0x80) return forget_published(arrived.id, false);
      if (found != on_their_way_.end()) found->second.released = true;
      return mqtt::append_acknowledgement(wire_.out(), Type::kPubrel, arrived.id);
    }
    case Type::kSuback: {
      const auto suback = mqtt::read_suback(frame, options_.version);
      for (size_t i = 0; i < suback.codes.size() && i < options_.topics.size(); ++i) {
        if (suback.codes[i] < 0x80) continue;
        throw Error(Code::kInvalidArgument, kMqtt,
                    "the broker refuses the topic \"" + options_.topics[i] + "\" (code " +
                        std::to_string(suback.codes[i]) + ")");
      }
      has_subscribed_ = true;
      std::lock_guard lock(mutex_);
      subscribed_ = true;
      return;
    }
    case Type::kPingresp:
      ping_sent_ns_ = 0;
      return;
    case Type::kDisconnect:
      if (!frame.body.empty() && frame.body[0] == kTakenOver) {
        throw Error(Code::kInvalidArgument, kMqtt,
                    "another client has connected with the client_id \"" + options_.client_id +
                        "\": give each its own");
      }
      throw closed(mqtt::read_disconnect(frame));
    default:
      throw Error(Code::kDataLoss, kMqtt,
                  "the broker sent a packet of type " +
                      std::to_string(static_cast<int>(frame.type)) +
                      ", which a client does not get");
  }
}

void MqttClient::take(const mqtt::Publish& message) {
  if (message.qos == 2 && received_.count(message.id) != 0) {
    // Put before; only the answer was lost.
    duplicates_.fetch_add(1, std::memory_order_relaxed);
    return mqtt::append_acknowledgement(wire_.out(), Type::kPubrec, message.id);
  }
  if (message.duplicate) duplicates_.fetch_add(1, std::memory_order_relaxed);
  received_count_.fetch_add(1, std::memory_order_relaxed);
  received_bytes_.fetch_add(message.payload.size(), std::memory_order_relaxed);
  Message put;
  put.topic = message.topic;
  put.payload = message.payload;
  put.received_ns = now_ns();
  put.packet_id = message.id;
  put.duplicate = message.duplicate;
  if (message.qos > 0) {
    put.token = connection_ << kNumberBits | (first_arrived_ + arrived_.size() + 1);
    arrived_.push_back({message.id, message.qos, false});
  }
  if (!sink_->put(put) && message.qos > 0) {
    arrived_.back().safe = true;
    send_acknowledgements();
  }
}

// What other threads have asked for.
void MqttClient::take_requests() {
  std::lock_guard lock(mutex_);
  for (const uint64_t token : safe_) {
    if (token >> kNumberBits != connection_) continue;
    const uint64_t number = (token & kNumbers) - 1 - first_arrived_;
    if (number < arrived_.size()) arrived_[number].safe = true;
  }
  if (!safe_.empty()) {
    safe_.clear();
    send_acknowledgements();
  }
  sending_ = sending_ || !unreliable_.empty();
  wire_.out().insert(wire_.out().end(), unreliable_.begin(), unreliable_.end());
  unreliable_.clear();
  const uint32_t max_in_flight_2 =
      options_.version == mqtt::Version::k5 ? max_in_flight_ : kMaxInFlight2;
  while (!to_send_.empty() && in_flight_ < max_in_flight_) {
    const auto found = on_their_way_.find(to_send_.front());
    if (found != on_their_way_.end()) {
      Published& message = found->second;
      if (message.qos == 2 && in_flight_2_ >= max_in_flight_2) break;
      in_flight_2_ += message.qos == 2 ? 1 : 0;
      ++in_flight_;
      send_published(found->first, message);
    }
    to_send_.pop_front();
  }
}

void MqttClient::send_acknowledgements() {
  while (!arrived_.empty() && arrived_.front().safe) {
    const Arrived& message = arrived_.front();
    if (message.qos == 2) received_.insert(message.id);
    const Type type = message.qos == 2 ? Type::kPubrec : Type::kPuback;
    mqtt::append_acknowledgement(wire_.out(), type, message.id);
    acknowledged_.fetch_add(1, std::memory_order_relaxed);
    arrived_.pop_front();
    ++first_arrived_;
  }
}

void MqttClient::send_published(uint16_t id, Published& message) {
  if (message.released) return mqtt::append_acknowledgement(wire_.out(), Type::kPubrel, id);
  mqtt::append(wire_.out(), options_.version,
               {message.topic, message.payload, message.qos, id, message.sent});
  message.sent = true;
}

void MqttClient::forget_published(uint16_t id, bool accepted) {
  const auto found = on_their_way_.find(id);
  if (found == on_their_way_.end()) return;
  if (found->second.qos == 2 && in_flight_2_ > 0) --in_flight_2_;
  on_their_way_.erase(found);
  if (accepted) {
    published_.fetch_add(1);
  } else {
    ++unsent_;
  }
  if (in_flight_ > 0) --in_flight_;
  changed_.notify_all();
}

void MqttClient::keep_alive() {
  if (keep_alive_ns_ == 0) return;
  const uint64_t now = now_ns();
  // While the sink is full, an answer may be behind messages that are not read. The broker, too,
  // wants a sign of life meanwhile.
  const bool full = sink_->full();
  if (full && ping_sent_ns_ != 0) ping_sent_ns_ = now;
  if (ping_sent_ns_ != 0 && now - ping_sent_ns_ > keep_alive_ns_) {
    throw closed("the broker did not answer a ping");
  }
  if ((ping_sent_ns_ == 0 || full) &&
      now - std::max(wire_.last_sent_ns(), last_ping_ns_) > keep_alive_ns_ / 2) {
    mqtt::append_ping(wire_.out());
    ping_sent_ns_ = last_ping_ns_ = now;
  }
}

}  // namespace penstock::online
