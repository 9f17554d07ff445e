#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/base/os.h"
#include "penstock/net/tls_client.h"
#include "penstock/online/message.h"
#include "penstock/online/mqtt_packets.h"
#include "penstock/online/mqtt_wire.h"

namespace penstock::online {

struct MqttOptions {
  std::string host = "localhost";
  uint16_t port = 1883;
  std::vector<std::string> topics = {};  // filters: + and #, $share/<group>/<filter>
  uint8_t qos = 1;
  mqtt::Version version = mqtt::Version::k311;
  std::string client_id = {};  // empty: the broker chooses one, and no session can be resumed
  // False: the broker keeps the session, and the messages for it, while the client is away.
  bool clean_start = true;
  uint32_t session_expiry_s = 3600;  // version 5, for how long it keeps them
  uint16_t keep_alive_s = 60;
  std::string user = {}, password = {};
  std::optional<net::TlsClientOptions> tls = std::nullopt;
  uint32_t max_packet_bytes = 64 << 20;
  double connect_timeout_s = 30;  // for the first connection; later ones are tried without end
  // Called while publish() and flush() wait, about ten times a second; may throw.
  std::function<void()> while_waiting = nullptr;
};

// Messages from an MQTT broker, acknowledged when the sink says so, and published to it.
//
// QoS 1 and 2: a message is acknowledged (PUBACK, PUBREC) after acknowledge() of its token, in the
// order of arrival. What was not acknowledged is sent again by the broker after a reconnection, to
// a client with a session, with Message::duplicate set. QoS 2: once acknowledged, a message is not
// put again, whatever the broker repeats.
//
// States of the thread: connecting -> subscribing -> receiving; from each -> waiting (the
// connection was lost) -> connecting; from each -> ended (stop(), or an error that stays: a wrong
// password, a certificate that is not trusted, a refused filter, no first connection in time).
//
// Threads: as MessageSource says; publish(), flush() and start_publishing() from any. A forked
// child can only destroy it.
class MqttClient final : public MessageSource {
 public:
  // Error kInvalidArgument.
  explicit MqttClient(MqttOptions options);
  ~MqttClient() override;

  // Error kInvalidArgument: it was started before, or there are no topics.
  void start(MessageSink& sink) override;
  // Connects without subscribing to anything. Does nothing if the client was started.
  void start_publishing();
  void acknowledge(std::span<const uint64_t> tokens) override;
  void space() override;
  void stop() override;
  std::string state() const override;
  // Waits for the first connection. QoS 0: sent if there is a connection, and counted if not. QoS 1
  // and 2: sent again until the broker has acknowledged; waits while 1,000 messages are on their
  // way. Errors: kInvalidArgument, kClosed (also before a start).
  void publish(std::string_view topic, std::span<const std::byte> payload, int qos) override;
  // Waits until what was published is sent (QoS 0) or acknowledged; whether it is, in this time.
  bool flush(double seconds);

 private:
  using Bytes = mqtt::Bytes;

  // A message that the sink has, in the order of arrival.
  struct Arrived {
    uint16_t id;
    uint8_t qos;
    bool safe;  // it may be acknowledged
  };
  // A message of publish() that the broker has not acknowledged.
  struct Published {
    std::string topic;
    Bytes payload;
    uint8_t qos;
    bool sent = false;      // perhaps, by some connection
    bool released = false;  // QoS 2: PUBREC came
  };

  void begin(MessageSink& sink, bool subscribes);
  void wait_until(std::unique_lock<std::mutex>& lock, const std::function<bool()>& done,
                  const Deadline& deadline);
  void run();
  double patience() const;  // seconds for the broker to answer
  void hello();
  void receive();  // until stop(), or an Error
  void wait_before_next(uint32_t failures);
  bool stopping() const { return stopping_.load(std::memory_order_acquire); }
  void wake();

  // As Wire::wait(); wakes flush() when all is sent.
  void wait(bool readable, int64_t timeout_ms);
  void handle_frames();
  void handle(const mqtt::Frame& frame);
  void take(const mqtt::Publish& message);
  void take_requests();
  void send_acknowledgements();
  void send_published(uint16_t id, Published& message);
  void forget_published(uint16_t id, bool accepted);  // under mutex_
  void keep_alive();

  const MqttOptions options_;
  const mqtt::Wire::Broker broker_;
  MessageSink* sink_ = nullptr;
  bool subscribes_ = false;
  std::atomic<pid_t> pid_{0};  // of the process whose thread it is
  os::Fd wake_;                // eventfd
  std::thread thread_;
  std::mutex joining_;
  std::atomic<bool> stopping_{false};

  // Of the thread alone.
  mqtt::Wire wire_;
  bool has_subscribed_ = false;  // on some connection
  uint64_t connection_ = 0;      // its number: the high half of tokens
  uint64_t first_arrived_ = 0;   // the number of arrived_.front()
  std::deque<Arrived> arrived_;  // not acknowledged
  std::set<uint16_t> received_;  // QoS 2: PUBREC was sent, PUBREL has not come
  uint64_t last_ping_ns_ = 0;
  uint64_t ping_sent_ns_ = 0;  // 0: its answer has come
  uint64_t keep_alive_ns_ = 0;
  std::minstd_rand random_;

  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::vector<uint64_t> safe_;  // tokens of acknowledge()
  Bytes unreliable_;            // packets of publish() with QoS 0
  bool sending_ = false;        // the thread has packets that it took from here
  std::map<uint16_t, Published> on_their_way_;
  std::deque<uint16_t> to_send_;  // of on_their_way_
  // Of this connection; in_flight_2_: those of QoS 2.
  uint32_t in_flight_ = 0, in_flight_2_ = 0, max_in_flight_ = 0;
  uint64_t max_sent_bytes_ = UINT32_MAX;  // of a packet that the broker takes
  uint64_t unsent_ = 0;
  uint16_t next_id_ = 1;
  std::string last_error_;
  bool started_ = false, connected_ = false, subscribed_ = false, ended_ = false;

  std::atomic<uint64_t> received_count_{0}, received_bytes_{0}, acknowledged_{0}, duplicates_{0},
      connections_{0}, published_{0};
};

}  // namespace penstock::online
