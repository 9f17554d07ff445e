#include <algorithm>
#include <nlohmann/json.hpp>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/train/server/shard.h"

// What a shard says of itself, and its state as a whole.
namespace penstock::train {

// Counts are since this object was made; what the record counts outlives it. "staleness"[i] counts
// pushes that came 2^(i-1) to 2^i - 1 versions after what they were computed from ([0]: none).
std::string Shard::stats() const {
  std::lock_guard lock(mutex_);
  const uint64_t now = now_ns();
  const ShardRecord& record = memory_->record();
  nlohmann::ordered_json workers = nlohmann::ordered_json::array();
  for (const auto& [id, member] : members_) {
    const LedgerRow row = row_of(id);
    const auto left = static_cast<int64_t>(member.lease_end - now);
    workers.push_back(
        {{"worker", id},
         {"name", member.name},
         {"address", member.address},
         {"sequence", row.sequence},
         {"clock", row.clock},
         {"pushes", member.pushes},
         {"waiting", member.inside > 0},
         {"lapsed", member.lapsed},
         {"lease_left_s", member.inside > 0 ? mode_.lease_s : std::max(0.0, 1e-9 * left)}});
  }
  const nlohmann::ordered_json stats = {{"version", record.version},
                                        {"step", record.step},
                                        {"floats", memory_->shape().floats},
                                        {"seconds", 1e-9 * static_cast<double>(now - began_ns_)},
                                        {"pushes", pushes_},
                                        {"repeated", repeated_},
                                        {"lapsed", lapsed_},
                                        {"skipped", record.skipped},
                                        {"non_finite", record.non_finite},
                                        {"pulls", pulls_},
                                        {"bytes_in", bytes_in_},
                                        {"bytes_out", bytes_out_},
                                        {"staleness", staleness_},
                                        {"saved_version", memory_->saved().version},
                                        {"saving_failed", saving_failed_},
                                        {"workers", workers}};
  return stats.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void Shard::saving_failed(const std::string& why) {
  std::lock_guard lock(mutex_);
  saving_failed_ = why;
}

uint64_t Shard::read(std::span<float> into) const {
  std::lock_guard lock(mutex_);
  const ShardMemory::Now now = memory_->now();
  std::ranges::copy(memory_->weights(now.copy), into.begin());
  return now.version;
}

std::unique_ptr<Shard::Moment> Shard::moment() const {
  auto made = std::make_unique<Moment>();
  made->weights.resize(memory_->shape().floats);
  made->states.assign(memory_->shape().states, made->weights);
  std::lock_guard lock(mutex_);
  const uint32_t copy = memory_->now().copy;
  made->record = memory_->record();
  made->commits = memory_->commits();
  std::ranges::copy(memory_->weights(copy), made->weights.begin());
  for (uint32_t i = 0; i < memory_->shape().states; ++i) {
    std::ranges::copy(memory_->state(copy, i), made->states[i].begin());
  }
  return made;
}

void Shard::restore(const Moment& moment) {
  std::lock_guard lock(mutex_);
  if (!members_.empty() || moment.weights.size() != memory_->shape().floats ||
      moment.states.size() != memory_->shape().states) {
    throw Error(Code::kInvalidArgument, "restore", "the state of another shard");
  }
  const uint32_t copy = memory_->now().copy;
  std::ranges::copy(moment.weights, memory_->weights(copy).begin());
  for (uint32_t i = 0; i < memory_->shape().states; ++i) {
    std::ranges::copy(moment.states[i], memory_->state(copy, i).begin());
  }
  memory_->commit(copy, [&](ShardRecord& next) { next = moment.record; });
  for (uint32_t i = 0; i < kMostWorkers; ++i) {
    const uint64_t worker = moment.record.rows[i].worker;
    if (worker == 0) continue;
    rows_[worker] = i;
    renew(members_[worker]);
  }
  started_ = started_ || moment.record.step > 0;
}

}  // namespace penstock::train
