#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "penstock/online/message.h"

namespace penstock::online {

// Recognises redelivered messages: one has the identifier and the bytes of its first delivery. A
// broker uses an identifier again, for another message, after 65,535 others; so an identifier is
// forgotten after half as many.
class RecentIds {
 public:
  struct Id {
    uint16_t packet_id;
    uint32_t crc;
  };

  static uint32_t checksum(std::string_view topic, std::span<const std::byte> payload);
  // True: `message` is a redelivery of a message that was noted.
  bool seen(const Message& message, uint32_t crc) const;
  void note(Id id);  // packet_id 0 is not noted
  std::vector<Id> in_order() const;

 private:
  struct Noted {
    uint32_t crc;
    uint64_t number;
  };
  std::unordered_map<uint16_t, Noted> noted_;
  uint64_t count_ = 0;
};

}  // namespace penstock::online
