#pragma once

#include <cstdint>
#include <vector>

#include "penstock/train/channel.h"
#include "penstock/train/producer.h"
#include "tests/cpp/train/publishing.h"

namespace penstock::train::testing {

// The producer, the item's number, and values derived from both, so that a mixture is detected.
inline Example an_item(int64_t who, int64_t number, int64_t values) {
  Tensor id = Tensor::make(DType::kInt64, {2});
  id.as_span<int64_t>()[0] = who;
  id.as_span<int64_t>()[1] = number;
  Tensor x = Tensor::make(DType::kInt32, {values});
  std::ranges::fill(x.as_span<int32_t>(), static_cast<int32_t>(who * 1'000'003 + number));
  return {{"id", id}, {"x", x}};
}

struct Seen {
  int64_t who = 0, number = 0;
  bool whole = false;
};

// The items in the order in which they were put.
inline std::vector<Seen> seen(const Items& items) {
  std::vector<Seen> all;
  for (size_t i = 0; i < items.size(); ++i) {
    const auto [block, row] = items[i];
    const Example item = items.blocks()[block].row(row);
    const auto id = item.at("id").as_span<const int64_t>();
    const auto expected = static_cast<int32_t>(id[0] * 1'000'003 + id[1]);
    all.push_back({id[0], id[1],
                   std::ranges::all_of(item.at("x").as_span<const int32_t>(),
                                       [&](int32_t x) { return x == expected; })});
  }
  return all;
}

// Whether the channel has this many connected producers, after a wait.
inline bool has_producers(Channel& channel, size_t count) {
  return eventually([&] { return channel.producers() == count; });
}

inline ProducerCounts total(const std::vector<ProducerCounts>& all) {
  ProducerCounts sum;
  for (const ProducerCounts& each : all) {
    sum.put += each.put;
    sum.got += each.got;
    sum.dropped += each.dropped;
    sum.refused += each.refused;
    sum.queued += each.queued;
  }
  return sum;
}

}  // namespace penstock::train::testing
