#include "penstock/online/mqtt_packets.h"

#include <algorithm>
#include <cstring>

#include "penstock/base/error.h"

namespace penstock::online::mqtt {
namespace {

constexpr size_t kMaxLength = 268'435'455;  // of a packet without its header
constexpr size_t kMaxText = 65'535;
constexpr uint8_t kRetainIfNew = 0x10;
constexpr std::string_view kNotInATopic("+#\0", 3);

// Identifiers of properties (MQTT 5.0, 2.2.2.2) that are read or written here.
constexpr uint8_t kSessionExpiry = 0x11, kServerKeepAlive = 0x13, kReasonString = 0x1F,
                  kReceiveMaximum = 0x21, kMaximumPacketSize = 0x27;

Error malformed(const std::string& why) {
  return Error(Code::kDataLoss, "MQTT", "the broker sent a malformed packet: " + why);
}

// ---- writing

void put8(Bytes& out, uint8_t value) { out.push_back(std::byte{value}); }
void put16(Bytes& out, uint16_t value) {
  put8(out, static_cast<uint8_t>(value >> 8));
  put8(out, static_cast<uint8_t>(value & 0xFF));
}
void put32(Bytes& out, uint32_t value) {
  put16(out, static_cast<uint16_t>(value >> 16));
  put16(out, static_cast<uint16_t>(value & 0xFFFF));
}
void put_bytes(Bytes& out, std::span<const std::byte> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}
void put_text(Bytes& out, std::string_view text) {
  if (text.size() > kMaxText) {
    throw Error(Code::kInvalidArgument, "MQTT",
                "a text of " + std::to_string(text.size()) + " bytes; 65535 at most");
  }
  put16(out, static_cast<uint16_t>(text.size()));
  put_bytes(out, std::as_bytes(std::span(text)));
}
void put_length(Bytes& out, size_t length) {
  do {
    auto low = static_cast<uint8_t>(length % 128);
    length /= 128;
    put8(out, length > 0 ? low | 0x80 : low);
  } while (length > 0);
}
void put_header(Bytes& out, Type type, uint8_t flags, size_t length) {
  put8(out, static_cast<uint8_t>(static_cast<uint8_t>(type) << 4 | flags));
  put_length(out, length);
}

// ---- reading

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}

  bool empty() const { return left_.empty(); }
  std::span<const std::byte> rest() const { return left_; }
  std::span<const std::byte> bytes(size_t count) {
    if (count > left_.size()) throw malformed("it ends within a field");
    const auto found = left_.first(count);
    left_ = left_.subspan(count);
    return found;
  }
  uint8_t get8() { return static_cast<uint8_t>(bytes(1)[0]); }
  uint16_t get16() {
    const auto at = bytes(2);
    return static_cast<uint16_t>(static_cast<uint16_t>(at[0]) << 8 | static_cast<uint16_t>(at[1]));
  }
  uint32_t get32() {
    const uint32_t high = get16();
    return high << 16 | get16();
  }
  std::string_view text() {
    const auto found = bytes(get16());
    return {reinterpret_cast<const char*>(found.data()), found.size()};
  }
  size_t length() {
    size_t value = 0;
    for (int shift = 0; shift < 28; shift += 7) {
      const uint8_t byte = get8();
      value |= static_cast<size_t>(byte & 0x7F) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    throw malformed("a length has more than four bytes");
  }

 private:
  std::span<const std::byte> left_;
};

// Reads properties up to their end; `found(id, reader)` reads those that matter and returns whether
// it did.
template <typename Found>
void read_properties(Reader& packet, Found found) {
  Reader reader(packet.bytes(packet.length()));
  while (!reader.empty()) {
    const size_t id = reader.length();
    if (found(id, reader)) continue;
    switch (id) {
      case 0x01:
      case 0x17:
      case 0x19:
      case 0x24:
      case 0x25:
      case 0x28:
      case 0x29:
      case 0x2A:
        reader.bytes(1);
        break;
      case kServerKeepAlive:
      case kReceiveMaximum:
      case 0x22:
      case 0x23:
        reader.bytes(2);
        break;
      case 0x02:
      case kSessionExpiry:
      case 0x18:
      case kMaximumPacketSize:
        reader.bytes(4);
        break;
      case 0x0B:
        reader.length();
        break;
      case 0x26:
        reader.text();
        reader.text();
        break;
      case 0x03:
      case 0x08:
      case 0x09:
      case 0x12:
      case 0x15:
      case 0x16:
      case 0x1A:
      case 0x1C:
      case kReasonString:
        reader.text();
        break;
      default:
        throw malformed("property " + std::to_string(id) + " does not exist");
    }
  }
}
void skip_properties(Reader& packet) {
  read_properties(packet, [](size_t, Reader&) { return false; });
}

std::string meaning(uint8_t code) {
  switch (code) {
    case 1:
      return "it does not speak this version of MQTT";
    case 2:
    case 0x85:
      return "it refuses the client id";
    case 3:
    case 0x88:
      return "the server is unavailable";
    case 4:
    case 0x86:
      return "wrong user or password";
    case 5:
    case 0x87:
      return "not authorized";
    case 0x84:
      return "it does not speak this version of MQTT";
    case 0x89:
      return "the server is busy";
    case 0x8A:
      return "banned";
    case 0x8B:
      return "the server shuts down";
    case 0x8D:
      return "keep alive timed out";
    case 0x8E:
      return "another client with this client id has connected";
    case 0x95:
      return "a packet was too large";
    case 0x97:
      return "quota exceeded";
    default:
      return "code " + std::to_string(code);
  }
}

}  // namespace

void append(Bytes& out, const Connect& connect) {
  Bytes body;
  put_text(body, "MQTT");
  put8(body, static_cast<uint8_t>(connect.version));
  const bool named = !connect.user.empty(), secret = !connect.password.empty();
  put8(body, static_cast<uint8_t>((named ? 0x80 : 0) | (secret ? 0x40 : 0) |
                                  (connect.clean_start ? 0x02 : 0)));
  put16(body, connect.keep_alive_s);
  if (connect.version == Version::k5) {
    Bytes properties;
    if (connect.session_expiry_s != 0) {
      put8(properties, kSessionExpiry);
      put32(properties, connect.session_expiry_s);
    }
    if (connect.max_packet_bytes != 0) {
      put8(properties, kMaximumPacketSize);
      put32(properties, connect.max_packet_bytes);
    }
    put_length(body, properties.size());
    put_bytes(body, properties);
  }
  put_text(body, connect.client_id);
  if (named) put_text(body, connect.user);
  if (secret) put_text(body, connect.password);
  put_header(out, Type::kConnect, 0, body.size());
  put_bytes(out, body);
}

void check_filter(std::string_view filter) {
  const auto refuse = [&](const char* why) {
    return Error(Code::kInvalidArgument, "MQTT",
                 "\"" + std::string(filter) + "\" is no topic filter: " + why);
  };
  if (filter.size() > kMaxText) throw refuse("it is longer than 65535 bytes");
  if (filter.find('\0') != std::string_view::npos) throw refuse("it has a null character");
  std::string_view rest = filter;
  constexpr std::string_view kShare = "$share/";
  if (rest.substr(0, kShare.size()) == kShare) {
    rest.remove_prefix(kShare.size());
    const size_t end = rest.find('/');
    const std::string_view group = rest.substr(0, end);
    if (group.empty() || group.find_first_of("+#") != std::string_view::npos) {
      throw refuse("a shared subscription is $share/<group>/<filter>");
    }
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  }
  if (rest.empty()) throw refuse("it is empty");
  for (;;) {
    const size_t end = rest.find('/');
    const std::string_view level = rest.substr(0, end);
    const bool last = end == std::string_view::npos;
    if (level.find_first_of("+#") != std::string_view::npos) {
      if (level.size() > 1) throw refuse("+ and # stand alone between slashes");
      if (level == "#" && !last) throw refuse("# is at the end only");
    }
    if (last) return;
    rest.remove_prefix(end + 1);
  }
}

void append_subscribe(Bytes& out, Version version, uint16_t id,
                      std::span<const std::string> filters, uint8_t qos) {
  Bytes body;
  put16(body, id);
  if (version == Version::k5) put_length(body, 0);
  for (const std::string& filter : filters) {
    put_text(body, filter);
    // Version 5: retained messages are sent only for a subscription that the session did not have.
    put8(body, version == Version::k5 ? qos | kRetainIfNew : qos);
  }
  put_header(out, Type::kSubscribe, 2, body.size());
  put_bytes(out, body);
}

void append(Bytes& out, Version version, const Publish& publish) {
  if (publish.topic.empty() ||
      publish.topic.find_first_of(kNotInATopic) != std::string_view::npos ||
      publish.topic.size() > kMaxText) {
    throw Error(Code::kInvalidArgument, "MQTT",
                "cannot publish to the topic \"" + std::string(publish.topic.substr(0, 100)) +
                    "\": a topic has 1 to 65535 bytes, and no +, # or zero byte");
  }
  const size_t length = 2 + publish.topic.size() + (publish.qos > 0 ? 2 : 0) +
                        (version == Version::k5 ? 1 : 0) + publish.payload.size();
  if (length > kMaxLength) {
    throw Error(Code::kInvalidArgument, "MQTT",
                "a message of " + std::to_string(publish.payload.size()) +
                    " bytes; 256 MB is the protocol's limit");
  }
  put_header(out, Type::kPublish,
             static_cast<uint8_t>((publish.duplicate ? 8 : 0) | publish.qos << 1), length);
  put_text(out, publish.topic);
  if (publish.qos > 0) put16(out, publish.id);
  if (version == Version::k5) put_length(out, 0);
  put_bytes(out, publish.payload);
}

void append_acknowledgement(Bytes& out, Type type, uint16_t id) {
  put_header(out, type, type == Type::kPubrel ? 2 : 0, 2);
  put16(out, id);
}
void append_ping(Bytes& out) { put_header(out, Type::kPingreq, 0, 0); }
void append_disconnect(Bytes& out) { put_header(out, Type::kDisconnect, 0, 0); }

std::optional<Frame> next_frame(std::span<const std::byte> in, size_t max_bytes) {
  size_t length = 0;
  for (size_t i = 1; i < in.size(); ++i) {
    if (i > 4) throw malformed("a length has more than four bytes");
    const auto byte = static_cast<uint8_t>(in[i]);
    length |= static_cast<size_t>(byte & 0x7F) << (7 * (i - 1));
    if ((byte & 0x80) != 0) continue;
    const size_t bytes = i + 1 + length;
    if (bytes > max_bytes) {
      throw Error(Code::kDataLoss, "MQTT",
                  "the broker sent a packet of " + std::to_string(bytes) + " bytes; the limit is " +
                      std::to_string(max_bytes) + " (max_packet_bytes)");
    }
    if (bytes > in.size()) return std::nullopt;
    const auto first = static_cast<uint8_t>(in[0]);
    return Frame{static_cast<Type>(first >> 4), static_cast<uint8_t>(first & 0x0F),
                 in.subspan(i + 1, length), bytes};
  }
  return std::nullopt;
}

Connack read_connack(const Frame& frame, Version version) {
  if (frame.type != Type::kConnack) throw malformed("it is not the answer to CONNECT");
  Reader reader(frame.body);
  Connack connack;
  connack.session_present = (reader.get8() & 1) != 0;
  connack.code = reader.get8();
  if (version == Version::k5 && !reader.empty()) {
    read_properties(reader, [&](size_t id, Reader& from) {
      if (id == kReceiveMaximum) {
        connack.receive_maximum = std::max<uint16_t>(1, from.get16());
      } else if (id == kServerKeepAlive) {
        connack.keep_alive_s = from.get16();
      } else if (id == kMaximumPacketSize) {
        connack.max_packet_bytes = from.get32();
      } else if (id == kReasonString) {
        connack.reason = from.text();
      } else {
        return false;
      }
      return true;
    });
  }
  if (connack.reason.empty() && connack.code != 0) connack.reason = meaning(connack.code);
  return connack;
}

bool lasts(uint8_t code, Version version) {
  if (version == Version::k311) return code == 1 || code == 2 || code == 4 || code == 5;
  return code == 0x81 || code == 0x82 || code == 0x84 || code == 0x85 || code == 0x86 ||
         code == 0x87 || code == 0x8A || code == 0x8C;
}

Publish read_publish(const Frame& frame, Version version) {
  Publish publish;
  publish.qos = frame.flags >> 1 & 3;
  publish.duplicate = (frame.flags & 8) != 0;
  if (publish.qos == 3) throw malformed("a message has QoS 3");
  Reader reader(frame.body);
  publish.topic = reader.text();
  if (publish.topic.empty()) throw malformed("a message has no topic");
  if (publish.qos > 0) {
    publish.id = reader.get16();
    if (publish.id == 0) throw malformed("a message has the identifier 0");
  }
  if (version == Version::k5) skip_properties(reader);
  publish.payload = reader.rest();
  return publish;
}

Acknowledgement read_acknowledgement(const Frame& frame, Version version) {
  Reader reader(frame.body);
  Acknowledgement found{reader.get16()};
  if (found.id == 0) throw malformed("an acknowledgement has the identifier 0");
  if (version == Version::k5 && !reader.empty()) {
    found.code = reader.get8();
    if (!reader.empty()) skip_properties(reader);
  }
  return found;
}

Suback read_suback(const Frame& frame, Version version) {
  Reader reader(frame.body);
  Suback found{reader.get16(), {}};
  if (version == Version::k5) skip_properties(reader);
  for (const std::byte code : reader.rest()) found.codes.push_back(static_cast<uint8_t>(code));
  return found;
}

std::string read_disconnect(const Frame& frame) {
  Reader reader(frame.body);
  if (reader.empty()) return "the broker ended the connection";
  std::string reason = meaning(reader.get8());
  if (!reader.empty()) {
    read_properties(reader, [&](size_t id, Reader& from) {
      if (id == kReasonString) reason = from.text();
      return id == kReasonString;
    });
  }
  return "the broker ended the connection: " + reason;
}

}  // namespace penstock::online::mqtt
