#include <nlohmann/json.hpp>
#include <string>

#include "penstock/observe/report.h"

namespace penstock {
namespace {

using Json = nlohmann::ordered_json;

// Each lane (the consumer, a worker) is a "process" of the viewer. Its first thread holds the plain
// events. Merged events of different kinds overlap without nesting, which viewers refuse on one
// thread, so they get one thread per kind.
constexpr int kPlainThread = 1;
constexpr int kMergedThreads = 10;

double micros(uint64_t ns) { return static_cast<double>(ns) / 1e3; }

Json metadata(const char* what, size_t lane, int thread, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", lane}, {"tid", thread}, {"args", {{"name", name}}}};
}

void add_lane(Json& out, size_t lane, const char* category, const std::string& name,
              const std::vector<TraceEvent>& trace) {
  out.push_back(metadata("process_name", lane, 0, name));
  out.push_back({{"ph", "M"},
                 {"name", "process_sort_index"},
                 {"pid", lane},
                 {"tid", 0},
                 {"args", {{"sort_index", lane}}}});
  out.push_back(metadata("thread_name", lane, kPlainThread, "tickets"));
  bool merged_kinds[kTraceKinds] = {};
  for (const TraceEvent& event : trace) {
    const auto kind = static_cast<size_t>(event.kind);
    const bool merged = event.count > 1;
    if (merged && !merged_kinds[kind]) {
      merged_kinds[kind] = true;
      out.push_back(metadata("thread_name", lane, kMergedThreads + static_cast<int>(kind),
                             "merged: " + std::string(name_of(event.kind))));
    }
    const int thread = merged ? kMergedThreads + static_cast<int>(kind) : kPlainThread;
    const bool instant = event.kind == TraceKind::kRestart || event.kind == TraceKind::kError;
    Json entry = {{"name", name_of(event.kind)},  {"cat", category}, {"ph", instant ? "i" : "X"},
                  {"ts", micros(event.begin_ns)}, {"pid", lane},     {"tid", thread}};
    if (instant) {
      entry["s"] = "p";
    } else {
      entry["dur"] = micros(event.span_ns);
    }
    entry["args"] = {{"epoch", event.epoch}, {"step", event.step}, {"part", event.granule}};
    if (merged) {
      entry["args"]["pieces"] = event.count;
      entry["args"]["active_us"] = micros(event.active_ns);
    }
    out.push_back(std::move(entry));
  }
}

}  // namespace

std::string chrome_trace(const Snapshot& snapshot) {
  Json events = Json::array();
  add_lane(events, 0, "consumer", "consumer", snapshot.consumer_trace);
  size_t lane = 1;
  for (const DeviceSnapshot& device : snapshot.devices) {
    add_lane(events, lane++, "device", device.name, device.trace);
  }
  for (const WorkerSnapshot& worker : snapshot.workers) {
    std::string name = worker.name;
    if (worker.pid != 0) {
      name += " (" + worker.kind + " " + std::to_string(worker.pid) + ")";
    }
    add_lane(events, lane++, "worker", name, worker.trace);
  }
  for (const DepthSample& sample : snapshot.depth) {
    events.push_back({{"name", "batches ready"},
                      {"ph", "C"},
                      {"ts", micros(sample.at_ns)},
                      {"pid", 0},
                      {"args", {{"batches", sample.depth}}}});
  }
  const Json trace = {{"displayTimeUnit", "ms"},
                      {"otherData", {{"source", snapshot.title}, {"mode", snapshot.mode}}},
                      {"traceEvents", std::move(events)}};
  return trace.dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace penstock
