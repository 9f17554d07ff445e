#include "penstock/observe/report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "penstock/observe/analysis.h"

namespace penstock {

namespace page {  // the files of page/, embedded by page.cmake
std::string_view report_html();
std::string_view report_css();
std::string_view report_js();
std::string_view timeline_js();
}  // namespace page

namespace {

using Json = nlohmann::ordered_json;

// This many events are drawn without a noticeable pause, and the page stays below about 5 MB.
constexpr size_t kMaxEvents = 120'000;
constexpr size_t kMaxLosses = 1'000;

// Microseconds since the page's zero, to a tenth.
double micros(uint64_t ns, uint64_t zero_ns) {
  const auto since = static_cast<double>(static_cast<int64_t>(ns - zero_ns));
  return std::round(since / 100) / 10;
}

uint64_t first_moment(const Snapshot& snapshot) {
  uint64_t zero = UINT64_MAX;
  const auto look_at = [&](const std::vector<TraceEvent>& trace) {
    for (const TraceEvent& event : trace) {
      zero = std::min(zero, event.begin_ns);
    }
  };
  look_at(snapshot.consumer_trace);
  for (const DeviceSnapshot& device : snapshot.devices) {
    look_at(device.trace);
  }
  for (const WorkerSnapshot& worker : snapshot.workers) {
    look_at(worker.trace);
  }
  if (snapshot.consumer.first_ns != 0) {
    zero = std::min(zero, snapshot.consumer.first_ns);
  }
  return zero == UINT64_MAX ? 0 : zero;
}

// [[kind, begin, span, active, epoch, step, count, granule], ...], times in microseconds.
Json events_json(const std::vector<TraceEvent>& trace, uint64_t zero_ns, size_t most) {
  Json events = Json::array();
  for (size_t i = trace.size() > most ? trace.size() - most : 0; i < trace.size(); ++i) {
    const TraceEvent& event = trace[i];
    events.push_back(
        Json::array({static_cast<uint32_t>(event.kind), micros(event.begin_ns, zero_ns),
                     micros(event.span_ns, 0), micros(event.active_ns, 0), event.epoch, event.step,
                     event.count, event.granule}));
  }
  return events;
}

template <class Figures>
Json figures_json(const Figures& figures) {
  Json out;
  for (const auto& field : Figures::fields()) {
    out[std::string(field.name)] = figures.*field.member;
  }
  return out;
}

Json copies_json(const WorkerFigures& figures) {
  Json rows = Json::array();
  for (size_t i = 0; i < kCopyReasons; ++i) {
    if (figures.copies[i] != 0) {
      rows.push_back({{"reason", name_of(static_cast<CopyReason>(i))},
                      {"copies", figures.copies[i]},
                      {"bytes", figures.bytes_copied[i]}});
    }
  }
  return rows;
}

Json stages_json(const std::vector<StageTime>& stages) {
  Json rows = Json::array();
  for (const StageTime& stage : stages) {
    rows.push_back({{"name", stage.name},
                    {"seconds", static_cast<double>(stage.total_ns) / 1e9},
                    {"share", stage.share},
                    {"per_batch_ms", stage.per_batch_ms}});
  }
  return rows;
}

// [{name, seconds, share, per_batch_ms, rows}, ...]
Json chain_json(const std::vector<StageTime>& times, const std::vector<StageSnapshot>& stages) {
  Json rows = stages_json(times);
  for (size_t i = 0; i < stages.size(); ++i) rows[i]["rows"] = stages[i].rows;
  return rows;
}

// history: [[begin, end, batches, messages, largest batch, mean age, longest age], ...], times in
// microseconds. sizes: [[the least messages, batches], ...].
Json live_json(const LiveSnapshot& live, uint64_t zero_ns) {
  const auto age = [&](double share) { return micros(live.ages.quantile_ns(share), 0); };
  Json out = {{"received", live.received},
              {"dropped", live.dropped},
              {"queued", live.queued},
              {"largest_batch", live.largest_batch},
              {"age_p50", age(0.5)},
              {"age_p99", age(0.99)},
              {"age_max", micros(live.ages.longest_ns(), 0)},
              {"sizes", Json::array()},
              {"history", Json::array()}};
  for (size_t i = 0; i < live.batch_sizes.size(); ++i) {
    if (live.batch_sizes[i] != 0) {
      out["sizes"].push_back(Json::array({uint64_t{1} << i, live.batch_sizes[i]}));
    }
  }
  for (const LiveInterval& at : live.history) {
    out["history"].push_back(Json::array(
        {micros(at.begin_ns, zero_ns), micros(at.end_ns, zero_ns), at.batches, at.messages,
         at.largest_batch, micros(at.sum_age_ns / std::max<uint64_t>(at.messages, 1), 0),
         micros(at.longest_age_ns, 0)}));
  }
  return out;
}

Json analysis_json(const Analysis& a) {
  return {{"bottleneck", name_of(a.bottleneck)},
          {"verdict", a.verdict},
          {"recommendations", a.recommendations},
          {"seconds", a.seconds},
          {"batches_per_second", a.batches_per_second},
          {"samples_per_second", a.samples_per_second},
          {"bytes_per_second", a.bytes_per_second},
          {"wait_share", a.wait_share},
          {"busy_share", a.busy_share},
          {"avoided_share", a.avoided_share},
          {"work_ms", a.work_ms},
          {"step_ms", a.step_ms},
          {"workers_enough", a.workers_enough},
          {"consumer_stages", stages_json(a.consumer_stages)},
          {"worker_stages", stages_json(a.worker_stages)}};
}

Json page_data(const Snapshot& snapshot) {
  const Analysis analysis = analyse(snapshot);
  const uint64_t zero = first_moment(snapshot);
  const size_t most = kMaxEvents / (snapshot.workers.size() + snapshot.devices.size() + 1);

  Json data = {{"title", snapshot.title},
               {"mode", snapshot.mode},
               {"batch_size", snapshot.batch_size},
               {"queue_size", snapshot.queue_size},
               {"active_workers", snapshot.active_workers},
               {"max_bytes", snapshot.max_bytes},
               {"cores", snapshot.cores}};
  data["facts"] = Json::array();
  for (const auto& [name, value] : snapshot.facts) {
    data["facts"].push_back(Json::array({name, value}));
  }
  data["kinds"] = Json::array();
  for (size_t i = 0; i < kTraceKinds; ++i) {
    data["kinds"].push_back(name_of(static_cast<TraceKind>(i)));
  }
  data["analysis"] = analysis_json(analysis);
  data["chain"] = chain_json(analysis.chain, snapshot.stages);
  data["stream"] = chain_json(analysis.stream, snapshot.stream_stages);
  data["consumer"] = figures_json(snapshot.consumer);
  data["total"] = figures_json(analysis.total);
  data["copies"] = copies_json(analysis.total);
  data["consumer_events"] = events_json(snapshot.consumer_trace, zero, most);
  data["devices"] = Json::array();
  for (const DeviceSnapshot& device : snapshot.devices) {
    data["devices"].push_back(
        {{"name", device.name}, {"events", events_json(device.trace, zero, most)}});
  }
  data["workers"] = Json::array();
  for (const WorkerSnapshot& worker : snapshot.workers) {
    data["workers"].push_back({{"name", worker.name},
                               {"kind", worker.kind},
                               {"pid", worker.pid},
                               {"figures", figures_json(worker.figures)},
                               {"events", events_json(worker.trace, zero, most)}});
  }
  data["depth"] = Json::array();
  for (const DepthSample& sample : snapshot.depth) {
    data["depth"].push_back(Json::array({micros(sample.at_ns, zero), sample.depth}));
  }
  data["live"] = snapshot.live ? live_json(*snapshot.live, zero) : Json();
  data["losses"] = Json::array();
  const size_t listed = std::min(snapshot.losses.size(), kMaxLosses);
  for (size_t i = 0; i < listed; ++i) {
    const LostItem& loss = snapshot.losses[i];
    data["losses"].push_back(
        {{"epoch", loss.epoch}, {"index", loss.index}, {"reason", loss.reason}});
  }
  data["losses_left_out"] = snapshot.losses_left_out + snapshot.losses.size() - listed;
  return data;
}

// JSON that is safe inside a <script> element, which only a '<' can end. Non-ASCII characters are
// escaped too, so the page does not depend on its encoding.
std::string script_safe(const Json& data) {
  const std::string text = data.dump(-1, ' ', true, Json::error_handler_t::replace);
  std::string out;
  out.reserve(text.size() + 64);
  for (const char c : text) {
    switch (c) {  // in JSON these occur in strings only
      case '<':
        out += "\\u003c";
        break;
      case '>':
        out += "\\u003e";
        break;
      case '&':
        out += "\\u0026";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace

std::string report_html(const Snapshot& snapshot) {
  const std::string data = script_safe(page_data(snapshot));
  const std::string_view html = page::report_html();
  // One pass over the template: placeholders in the inserted text are not replaced.
  const std::pair<std::string_view, std::string_view> parts[] = {
      {"{{style}}", page::report_css()},
      {"{{data}}", data},
      {"{{script}}", page::report_js()},
      {"{{timeline}}", page::timeline_js()}};
  std::string out;
  out.reserve(data.size() + 65'536);
  size_t at = 0;
  for (const auto& [placeholder, text] : parts) {
    const size_t found = html.find(placeholder, at);
    if (found == std::string_view::npos) {
      break;
    }
    out.append(html.substr(at, found - at)).append(text);
    at = found + placeholder.size();
  }
  out.append(html.substr(at));
  return out;
}

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
