#include "penstock/online/recent_ids.h"

#include <algorithm>
#include <utility>

#include "penstock/io/crc32c.h"

namespace penstock::online {
namespace {

constexpr uint64_t kRecentIds = 32'768;

}  // namespace

uint32_t RecentIds::checksum(std::string_view topic, std::span<const std::byte> payload) {
  return crc32c(payload, crc32c(std::as_bytes(std::span(topic)), 0));
}

bool RecentIds::seen(const Message& message, uint32_t crc) const {
  if (!message.duplicate) return false;
  const auto found = noted_.find(message.packet_id);
  return found != noted_.end() && found->second.crc == crc &&
         count_ - found->second.number < kRecentIds;
}

void RecentIds::note(Id id) {
  if (id.packet_id != 0) noted_[id.packet_id] = {id.crc, ++count_};
}

std::vector<RecentIds::Id> RecentIds::in_order() const {
  std::vector<std::pair<uint64_t, Id>> ids;
  for (const auto& [id, noted] : noted_) {
    if (count_ - noted.number < kRecentIds) ids.push_back({noted.number, {id, noted.crc}});
  }
  std::ranges::sort(ids, {}, [](const auto& each) { return each.first; });
  std::vector<Id> ordered;
  for (const auto& [number, id] : ids) ordered.push_back(id);
  return ordered;
}

}  // namespace penstock::online
