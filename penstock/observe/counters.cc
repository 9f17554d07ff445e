#include "penstock/observe/counters.h"

namespace penstock {
namespace {

// Both instantiations of a Fields template list the same fields in the same order.
template <template <class> class Fields>
void copy_fields(const Fields<Counter>& from, Fields<uint64_t>& to) {
  constexpr auto source = Fields<Counter>::fields();
  constexpr auto target = Fields<uint64_t>::fields();
  static_assert(source.size() == target.size());
  for (size_t i = 0; i < source.size(); ++i) {
    to.*target[i].member = (from.*source[i].member).get();
  }
}

}  // namespace

std::string_view name_of(CopyReason reason) {
  switch (reason) {
    case CopyReason::kNotOwned:
      return "not_owned";
    case CopyReason::kReferenced:
      return "referenced";
    case CopyReason::kForeign:
      return "foreign";
    case CopyReason::kSparse:
      return "sparse";
    case CopyReason::kSmall:
      return "small";
    case CopyReason::kPickled:
      return "pickled";
    case CopyReason::kRow:
      return "row";
    case CopyReason::kArenaFull:
      return "no_room";
    case CopyReason::kCount:
      break;
  }
  return "unknown";
}

WorkerFigures figures_of(const WorkerCounters& counters) {
  WorkerFigures figures{};
  copy_fields<WorkerFields>(counters, figures);
  for (size_t i = 0; i < kCopyReasons; ++i) {
    figures.copies[i] = counters.copies[i].get();
    figures.bytes_copied[i] = counters.bytes_copied[i].get();
  }
  return figures;
}

ConsumerFigures figures_of(const ConsumerCounters& counters) {
  ConsumerFigures figures{};
  copy_fields<ConsumerFields>(counters, figures);
  return figures;
}

StageFigures figures_of(const StageCounters& counters) {
  StageFigures figures{};
  for (size_t i = 0; i < kStages; ++i) {
    figures[i] = {counters[i].ns.get(), counters[i].rows.get()};
  }
  return figures;
}

StageFigures& operator+=(StageFigures& sum, const StageFigures& more) {
  for (size_t i = 0; i < kStages; ++i) {
    sum[i].ns += more[i].ns;
    sum[i].rows += more[i].rows;
  }
  return sum;
}

WorkerFigures& operator+=(WorkerFigures& sum, const WorkerFigures& more) {
  for (const auto& field : WorkerFigures::fields()) {
    sum.*field.member += more.*field.member;
  }
  for (size_t i = 0; i < kCopyReasons; ++i) {
    sum.copies[i] += more.copies[i];
    sum.bytes_copied[i] += more.bytes_copied[i];
  }
  return sum;
}

void DepthHistory::keep(uint64_t now_ns, uint32_t depth) {
  std::lock_guard lock(mutex_);
  if (samples_.size() == kCapacity) {
    for (size_t i = 0; i < kCapacity / 2; ++i) {
      samples_[i] = samples_[2 * i];
    }
    samples_.resize(kCapacity / 2);
    interval_ns_ *= 2;
  }
  samples_.push_back({now_ns, depth});
  next_ns_ = now_ns + interval_ns_;
}

std::vector<DepthSample> DepthHistory::read() const {
  std::lock_guard lock(mutex_);
  return samples_;
}

}  // namespace penstock
