// Core as reports and statistics see it.
#include <nanobind/stl/string.h>

#include "core.h"
#include "penstock/base/clock.h"
#include "penstock/observe/analysis.h"
#include "plan_feed.h"

namespace nb = nanobind;

namespace penstock::python {

namespace {

nb::list list_of(const std::vector<StageSnapshot>& stages) {
  nb::list list;
  for (const StageSnapshot& stage : stages) {
    nb::dict one;
    one["stage"] = stage.name;
    one["ns"] = stage.ns;
    one["rows"] = stage.rows;
    list.append(one);
  }
  return list;
}

}  // namespace

std::vector<StageSnapshot> Core::worker_stages() const {
  StageFigures sum{};
  for (uint32_t w = 0; w < board_->workers(); ++w) sum += figures_of(board_->place(w).stages);
  if (plan_feed_ != nullptr) return stages_of(sum, plan_feed_->plan().titles());
  return stages_of(sum, PythonWorker::stages(settings_.source == PlanSettings::Source::kStream));
}

std::vector<StageSnapshot> Core::stream_stages() const {
  return plan_feed_ == nullptr ? std::vector<StageSnapshot>() : plan_feed_->stream_stages();
}

Snapshot Core::snapshot(nb::dict about) {
  Snapshot s;
  s.title = setting<std::string>(about, "title");
  s.mode = setting<std::string>(about, "mode");
  s.batch_size = settings_.samples ? order_.options().batch_size : 0;
  if (plan_feed_ != nullptr) {
    const Plan& plan = plan_feed_->plan();
    s.batch_size = plan.batched() ? plan.most_rows() : 0;
  }
  s.queue_size = feed_->queue();
  s.active_workers = board_->active();
  s.max_bytes = setting<uint64_t>(about, "max_bytes");
  s.cores = os::usable_cores();
  s.pulled = settings_.source == PlanSettings::Source::kStream;
  for (auto [key, value] : setting<nb::dict>(about, "facts")) {
    s.facts.emplace_back(nb::cast<std::string>(key), nb::cast<std::string>(value));
  }
  s.taken_ns = now_ns();
  s.consumer = figures_of(board_->consumer());
  s.consumer_trace = events_of(board_->consumer_trace());
  auto kind = setting<std::string>(about, "kind");
  auto workers = setting<uint32_t>(about, "workers");
  for (uint32_t w = 0; w < workers; ++w) {
    WorkerPlace& place = board_->place(w);
    WorkerSnapshot worker;
    worker.name = "worker " + std::to_string(w);
    worker.kind = kind;
    worker.pid = place.pid.load();
    worker.figures = board_->figures(w);
    worker.trace = events_of(place.trace);
    s.workers.push_back(std::move(worker));
  }
  s.stages = worker_stages();
  s.stream_stages = stream_stages();
  s.depth = feed_->depths().read();
  s.losses = losses_->items();
  return s;
}

nb::dict Core::stats() {
  nb::dict out;
  ConsumerFigures consumer = figures_of(board_->consumer());
  for (const auto& field : ConsumerFigures::fields()) {
    out[nb::str(field.name.data(), field.name.size())] = consumer.*field.member;
  }
  nb::list losses;
  // A copy: making objects may run the collector, hence other threads, one of which adds to it.
  for (const LostItem& loss : std::vector<LostItem>(losses_->items())) {
    losses.append(
        nb::make_tuple(loss.epoch, loss.index, nb::str(loss.reason.data(), loss.reason.size())));
  }
  out["losses"] = losses;
  nb::list workers;
  WorkerFigures total{};
  for (uint32_t w = 0; w < board_->workers(); ++w) {
    WorkerFigures figures = board_->figures(w);
    total += figures;
    nb::dict one;
    for (const auto& field : WorkerFigures::fields()) {
      one[nb::str(field.name.data(), field.name.size())] = figures.*field.member;
    }
    one["pid"] = board_->place(w).pid.load();
    workers.append(one);
  }
  out["workers"] = workers;
  out["stages"] = list_of(worker_stages());
  out["stream_stages"] = list_of(stream_stages());
  nb::dict copies;
  for (size_t r = 0; r < kCopyReasons; ++r) {
    std::string_view name = name_of(static_cast<CopyReason>(r));
    copies[nb::str(name.data(), name.size())] = total.copies[r];
  }
  out["copies"] = copies;
  nb::dict copied;
  for (size_t r = 0; r < kCopyReasons; ++r) {
    std::string_view name = name_of(static_cast<CopyReason>(r));
    copied[nb::str(name.data(), name.size())] = total.bytes_copied[r];
  }
  out["bytes_copied"] = copied;
  out["copies_avoided"] = total.copies_avoided;
  out["bytes_avoided"] = total.bytes_avoided;
  out["active_workers"] = board_->active();
  out["queue_size"] = feed_->queue();
  out["queue"] = nb::make_tuple(board_->posted() - board_->head(), feed_->depth());
  return out;
}

}  // namespace penstock::python
