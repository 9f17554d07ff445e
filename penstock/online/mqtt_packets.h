#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// The packets of MQTT 3.1.1 and 5.0 (OASIS standards) that a client sends and receives. Threads:
// any.
namespace penstock::online::mqtt {

using Bytes = std::vector<std::byte>;

// The protocol's version, as CONNECT has it.
enum class Version : uint8_t { k311 = 4, k5 = 5 };

enum class Type : uint8_t {
  kConnect = 1,
  kConnack = 2,
  kPublish = 3,
  kPuback = 4,   // QoS 1: the message has arrived
  kPubrec = 5,   // QoS 2: the message has arrived
  kPubrel = 6,   // QoS 2: the sender will not send it again
  kPubcomp = 7,  // QoS 2: its identifier is free
  kSubscribe = 8,
  kSuback = 9,
  kPingreq = 12,
  kPingresp = 13,
  kDisconnect = 14,
};

// ---- what a client sends: appended to `out`

struct Connect {
  Version version = Version::k311;
  std::string client_id = {};  // empty: the broker chooses one
  bool clean_start = true;
  uint16_t keep_alive_s = 60;
  std::string user = {}, password = {};  // empty: none
  uint32_t session_expiry_s = 0;         // version 5
  uint32_t max_packet_bytes = 0;         // version 5; 0: no limit
};
void append(Bytes& out, const Connect& connect);
// Error kInvalidArgument, unless it is a filter: + is a whole level, # the last one; a shared
// subscription is $share/<group>/<filter>.
void check_filter(std::string_view filter);
void append_subscribe(Bytes& out, Version version, uint16_t id,
                      std::span<const std::string> filters, uint8_t qos);

struct Publish {
  std::string_view topic;
  std::span<const std::byte> payload;
  uint8_t qos = 0;
  uint16_t id = 0;         // 0 for QoS 0
  bool duplicate = false;  // sent before, perhaps
};
// Error kInvalidArgument: an empty topic, one with a wildcard or a zero byte; longer than a packet
// may be.
void append(Bytes& out, Version version, const Publish& publish);
// kPuback, kPubrec, kPubrel or kPubcomp.
void append_acknowledgement(Bytes& out, Type type, uint16_t id);
void append_ping(Bytes& out);
void append_disconnect(Bytes& out);

// ---- what it receives. Errors of all: kDataLoss, with the reason

struct Frame {
  Type type;
  uint8_t flags;
  std::span<const std::byte> body;
  size_t bytes;  // with its header
};
// The first packet of `in`; nullopt: more bytes are needed. A packet longer than `max_bytes` is an
// error as soon as its length is known.
std::optional<Frame> next_frame(std::span<const std::byte> in, size_t max_bytes);

struct Connack {
  bool session_present = false;
  uint8_t code = 0;    // 0: connected
  std::string reason;  // what the broker says about it, or what the code means
  uint16_t receive_maximum = 65535;
  uint32_t max_packet_bytes = UINT32_MAX;  // of a packet that the broker takes
  std::optional<uint16_t> keep_alive_s;    // the broker's, instead of the client's
};
Connack read_connack(const Frame& frame, Version version);
// Whether the code of a Connack will be the same at the next try: a wrong password, for example.
bool lasts(uint8_t code, Version version);

// Views of the frame's bytes.
Publish read_publish(const Frame& frame, Version version);

struct Acknowledgement {
  uint16_t id;
  uint8_t code = 0;  // 0x80 and above: an error
};
// kPuback, kPubrec, kPubrel or kPubcomp.
Acknowledgement read_acknowledgement(const Frame& frame, Version version);

struct Suback {
  uint16_t id;
  std::vector<uint8_t> codes;  // for each filter: the QoS, or 0x80 and above: refused
};
Suback read_suback(const Frame& frame, Version version);

// The reason in a broker's DISCONNECT (version 5).
std::string read_disconnect(const Frame& frame);

}  // namespace penstock::online::mqtt
