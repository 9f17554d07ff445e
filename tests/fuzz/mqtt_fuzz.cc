// Any bytes as the packets of an MQTT broker: each is read, waited for or refused, the same way for
// any number of bytes that came. A message that was read is written as a packet that reads the
// same.
//
//   byte 0: bit 0: version 5   then the packets
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "fuzz/require.h"
#include "penstock/base/error.h"
#include "penstock/online/mqtt_packets.h"

using namespace penstock;
namespace mqtt = penstock::online::mqtt;
using mqtt::Frame;
using mqtt::Type;
using mqtt::Version;

namespace {

constexpr size_t kMaxBytes = 1 << 16;

bool lies_in(std::span<const std::byte> part, std::span<const std::byte> whole) {
  return part.empty() ||
         (part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size());
}

void read_message(const Frame& frame, Version version) {
  const mqtt::Publish message = mqtt::read_publish(frame, version);
  REQUIRE(lies_in(std::as_bytes(std::span(message.topic)), frame.body));
  REQUIRE(lies_in(message.payload, frame.body));
  REQUIRE(message.qos <= 2 && (message.id == 0) == (message.qos == 0));
  mqtt::Bytes packet;
  try {
    mqtt::append(packet, version, message);
  } catch (const Error& error) {  // a client does not publish to a topic with a wildcard
    REQUIRE(error.code() == Code::kInvalidArgument);
    return;
  }
  const auto written = mqtt::next_frame(packet, packet.size());
  REQUIRE(written && written->bytes == packet.size());
  const mqtt::Publish again = mqtt::read_publish(*written, version);
  REQUIRE(again.topic == message.topic && std::ranges::equal(again.payload, message.payload));
  REQUIRE(again.qos == message.qos && again.id == message.id);
  REQUIRE(again.duplicate == message.duplicate);
}

void read(const Frame& frame, Version version) {
  switch (frame.type) {
    case Type::kConnack:
      (void)mqtt::lasts(mqtt::read_connack(frame, version).code, version);
      break;
    case Type::kPublish:
      read_message(frame, version);
      break;
    case Type::kPuback:
    case Type::kPubrec:
    case Type::kPubrel:
    case Type::kPubcomp:
      REQUIRE(mqtt::read_acknowledgement(frame, version).id != 0);
      break;
    case Type::kSuback:
      REQUIRE(mqtt::read_suback(frame, version).codes.size() <= frame.body.size());
      break;
    case Type::kDisconnect:
      REQUIRE(!mqtt::read_disconnect(frame).empty());
      break;
    default:
      break;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const Version version = (data[0] & 1) != 0 ? Version::k5 : Version::k311;
  std::span<const std::byte> in = std::as_bytes(std::span(data + 1, size - 1));
  try {
    while (const std::optional<Frame> frame = mqtt::next_frame(in, kMaxBytes)) {
      REQUIRE(frame->bytes <= in.size() && lies_in(frame->body, in));
      const auto whole = in.first(frame->bytes);
      const auto alone = mqtt::next_frame(whole, kMaxBytes);
      REQUIRE(alone && alone->bytes == frame->bytes && alone->body.size() == frame->body.size());
      REQUIRE(!mqtt::next_frame(whole.first(whole.size() - 1), kMaxBytes));
      try {
        read(*frame, version);
      } catch (const Error& error) {
        REQUIRE(error.code() == Code::kDataLoss);
      }
      in = in.subspan(frame->bytes);
    }
  } catch (const Error& error) {
    REQUIRE(error.code() == Code::kDataLoss);
  }
  return 0;
}
