#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace penstock::online {

// A message as a source hands it over. The views are valid during the call only.
struct Message {
  std::string_view topic;
  std::span<const std::byte> payload;
  uint64_t received_ns = 0;  // now_ns() when the source had read the whole message
  uint64_t token = 0;        // what acknowledge() gets; 0: no acknowledgement is wanted
  // A redelivered QoS 1 message may be one that was spooled already, before its acknowledgement
  // reached the broker. 0: not a redelivery, or a source without identifiers.
  uint16_t packet_id = 0;
  bool duplicate = false;  // MQTT's DUP flag
};

// Takes a source's messages. Called by the source's thread.
class MessageSink {
 public:
  virtual ~MessageSink() = default;

  // Copies the message. False: it was dropped by policy, and the source acknowledges it at once.
  // Never blocks for long: a sink that waits for space says so by full().
  virtual bool put(const Message& message) = 0;

  // While true, the source calls no put(), and stops reading its socket. It goes on with pings and
  // acknowledgements, until the sink calls MessageSource::space(). A put() in between is accepted.
  virtual bool full() const = 0;

  // Throws what prevents the sink for good from storing another message: a failed write. It is
  // full().
  virtual void check() const = 0;

  // The source has ended: nothing more will be put. `error`: why; empty if it was stopped, or has
  // no more messages.
  virtual void ended(const std::string& error) = 0;
};

// Receives messages in a thread of its own.
class MessageSource {
 public:
  virtual ~MessageSource() = default;  // REQUIRED: stopped, or never started

  // Starts the source's thread. The sink outlives it.
  virtual void start(MessageSink& sink) = 0;

  // These messages are safe: QoS 1 sends PUBACK, QoS 2 PUBREC. Any thread. Tokens of an earlier
  // connection are ignored.
  virtual void acknowledge(std::span<const uint64_t> tokens) = 0;

  // The sink has space again. Any thread.
  virtual void space() = 0;

  // Disconnects and joins the thread. Idempotent.
  virtual void stop() = 0;

  // For stats, as JSON: connected, reconnects, received, acknowledged, duplicates, bytes.
  virtual std::string state() const = 0;

  // Sends a message by the same connection. Errors: kInvalidArgument (a source that cannot).
  virtual void publish(std::string_view topic, std::span<const std::byte> payload, int qos) = 0;
};

}  // namespace penstock::online
