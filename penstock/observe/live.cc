#include "penstock/observe/live.h"

#include <algorithm>

namespace penstock {
namespace {

LiveInterval joined(const LiveInterval& a, const LiveInterval& b) {
  return {.begin_ns = a.begin_ns,
          .end_ns = b.end_ns,
          .batches = a.batches + b.batches,
          .messages = a.messages + b.messages,
          .largest_batch = std::max(a.largest_batch, b.largest_batch),
          .sum_age_ns = a.sum_age_ns + b.sum_age_ns,
          .longest_age_ns = std::max(a.longest_age_ns, b.longest_age_ns)};
}

}  // namespace

void LiveCounts::asked(uint64_t now_ns) {
  asked_ns_ = now_ns;
  if (given_ns_ == 0) return;
  figures_.busy_ns += now_ns - given_ns_;
  writer_.record(TraceKind::kConsumerBusy, given_ns_, now_ns, 0, figures_.delivered - 1);
  given_ns_ = 0;
}

void LiveCounts::given(uint64_t now_ns, uint64_t messages, uint64_t bytes) {
  if (figures_.first_ns != 0) {
    figures_.wait_ns += now_ns - asked_ns_;
    writer_.record(TraceKind::kConsumerWait, asked_ns_, now_ns, 0, figures_.delivered);
  }
  if (messages == 0) return;
  if (figures_.first_ns == 0) figures_.first_ns = now_ns;
  figures_.last_ns = given_ns_ = now_ns;
  ++figures_.delivered;
  figures_.samples += messages;
  figures_.bytes += bytes;
  ++sizes_[size_bucket(messages)];
  largest_ = std::max(largest_, messages);

  if (history_.empty() || now_ns - history_.back().begin_ns >= interval_ns_) {
    if (history_.size() == kCapacity) {
      for (size_t i = 0; i < kCapacity / 2; ++i) {
        history_[i] = joined(history_[2 * i], history_[2 * i + 1]);
      }
      history_.resize(kCapacity / 2);
      interval_ns_ *= 2;
    }
    history_.push_back({.begin_ns = now_ns});
  }
  LiveInterval& last = history_.back();
  last.end_ns = now_ns;
  ++last.batches;
  last.messages += messages;
  last.largest_batch = std::max(last.largest_batch, messages);
}

void LiveCounts::predicted(std::span<const uint64_t> ages_ns) {
  for (const uint64_t age : ages_ns) {
    ages_.add(age);
    history_.back().sum_age_ns += age;
    history_.back().longest_age_ns = std::max(history_.back().longest_age_ns, age);
  }
}

}  // namespace penstock
