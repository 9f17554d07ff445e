#include "loader_statistics.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "penstock/pipeline/engine/plan_engine.h"
#include "worker_times.h"

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

nb::tuple tuple_of(const TraceEvent& event) {
  return nb::make_tuple(static_cast<uint32_t>(event.kind), event.begin_ns, event.span_ns,
                        event.active_ns, event.step, event.count);
}

TraceEvent event_of(nb::handle tuple) {
  TraceEvent event;
  event.kind = static_cast<TraceKind>(nb::cast<uint32_t>(tuple[0]));
  event.begin_ns = nb::cast<uint64_t>(tuple[1]);
  event.span_ns = nb::cast<uint64_t>(tuple[2]);
  event.active_ns = nb::cast<uint64_t>(tuple[3]);
  event.step = nb::cast<uint64_t>(tuple[4]);
  event.count = nb::cast<uint32_t>(tuple[5]);
  return event;
}

nb::dict dict_of(const Analysis& analysis) {
  nb::dict out;
  const std::string_view name = name_of(analysis.bottleneck);
  out["bottleneck"] = nb::str(name.data(), name.size());
  out["verdict"] = analysis.verdict;
  out["recommendations"] = analysis.recommendations;
  out["seconds"] = analysis.seconds;
  out["batches_per_second"] = analysis.batches_per_second;
  out["samples_per_second"] = analysis.samples_per_second;
  out["wait_share"] = analysis.wait_share;
  out["step_ms"] = analysis.step_ms;
  out["work_ms"] = analysis.work_ms;
  out["workers_enough"] = analysis.workers_enough;
  return out;
}

std::vector<StageSnapshot> LoaderStatistics::worker_stages() const {
  if (!python_workers_) return engine_.worker_stages();
  return stages_of(engine_.worker_figures(),
                   WorkerTimes::stages(settings_.source == SampleSettings::Source::kStream));
}

Snapshot LoaderStatistics::snapshot(const nb::dict& about) const {
  Snapshot s =
      engine_.snapshot(setting<uint32_t>(about, "workers"), setting<std::string>(about, "kind"));
  s.title = setting<std::string>(about, "title");
  s.mode = setting<std::string>(about, "mode");
  const bool batched = python_workers_ ? settings_.samples : engine_.plan().batched();
  s.batch_size = batched ? engine_.plan().max_rows() : 0;
  s.pulled = settings_.source == SampleSettings::Source::kStream;
  for (auto [key, value] : setting<nb::dict>(about, "facts")) {
    s.facts.emplace_back(nb::cast<std::string>(key), nb::cast<std::string>(value));
  }
  for (nb::handle lane : setting<nb::list>(about, "devices")) {
    DeviceSnapshot device{nb::cast<std::string>(lane[0]), {}};
    for (nb::handle event : nb::list(lane[1])) device.trace.push_back(event_of(event));
    s.devices.push_back(std::move(device));
  }
  s.stages = worker_stages();
  s.stream_stages = engine_.stream_stages();
  return s;
}

nb::dict LoaderStatistics::stats() const {
  nb::dict out;
  TicketRing& ring = engine_.ring();
  ConsumerFigures consumer = figures_of(ring.consumer());
  for (const auto& field : ConsumerFigures::fields()) {
    out[nb::str(field.name.data(), field.name.size())] = consumer.*field.member;
  }
  nb::list losses;
  for (const LostItem& loss : engine_.losses()) {
    losses.append(
        nb::make_tuple(loss.epoch, loss.index, nb::str(loss.reason.data(), loss.reason.size())));
  }
  out["losses"] = losses;
  nb::list workers;
  WorkerFigures total{};
  for (uint32_t w = 0; w < ring.workers(); ++w) {
    WorkerFigures figures = ring.figures(w);
    total += figures;
    nb::dict one;
    for (const auto& field : WorkerFigures::fields()) {
      one[nb::str(field.name.data(), field.name.size())] = figures.*field.member;
    }
    one["pid"] = ring.place(w).pid.load();
    workers.append(one);
  }
  out["workers"] = workers;
  out["stages"] = list_of(worker_stages());
  out["stream_stages"] = list_of(engine_.stream_stages());
  out["stream_bytes_copied"] = engine_.stream_bytes_copied();
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
  out["active_workers"] = ring.sleepers().active();
  out["queue_size"] = engine_.scheduler().queue();
  out["queue"] = nb::make_tuple(ring.posted() - ring.head(), engine_.scheduler().depth());
  return out;
}

}  // namespace penstock::python
