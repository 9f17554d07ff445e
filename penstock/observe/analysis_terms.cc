#include "penstock/observe/analysis_terms.h"

#include <algorithm>
#include <cstdio>

namespace penstock {

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f %%", share > 0 && share < 0.01 ? 1 : 0, share * 100);
  return text;
}

std::string plural(uint64_t n, const std::string& word) {
  return std::to_string(n) + " " + word + (n == 1 ? "" : "s");
}

bool in_line(const Snapshot& snapshot) { return snapshot.mode == "inline"; }

bool short_queue(const Snapshot& snapshot) {
  return snapshot.batch_size == 0 && snapshot.queue_size < snapshot.workers.size();
}

uint64_t room_of(const Snapshot& snapshot) {
  const ConsumerFigures& c = snapshot.consumer;
  if (snapshot.max_bytes == 0 || c.bytes == 0 || c.delivered == 0) return 0;
  const double batch = static_cast<double>(c.bytes) / static_cast<double>(c.delivered);
  const double room = static_cast<double>(snapshot.max_bytes) / batch;
  return static_cast<uint64_t>(std::clamp(room, 1.0, 1e9));
}

bool short_of_room(const Snapshot& snapshot) {
  const uint64_t room = room_of(snapshot), workers = snapshot.workers.size();
  return room != 0 && room < (snapshot.active_workers == 0 ? workers : snapshot.active_workers);
}

const StageTime* largest(const std::vector<StageTime>& stages) {
  const auto most = std::ranges::max_element(stages, {}, &StageTime::total_ns);
  return most == stages.end() || most->total_ns == 0 ? nullptr : &*most;
}

const StageTime* largest_in_line(const Analysis& a) {
  const StageTime *chain = largest(a.chain), *stream = largest(a.stream);
  if (chain == nullptr || stream == nullptr) return chain == nullptr ? stream : chain;
  return stream->total_ns > chain->total_ns ? stream : chain;
}

}  // namespace penstock
