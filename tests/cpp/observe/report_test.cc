#include "penstock/observe/report.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "sample_snapshot.h"

namespace penstock {
namespace {

using Json = nlohmann::json;

size_t count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++n;
  }
  return n;
}

// The JSON that the page's script parses.
Json data_of(const std::string& html) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const size_t begin = html.find(open) + open.size();
  return Json::parse(html.substr(begin, html.find("</script>", begin) - begin));
}

Snapshot traced_snapshot() {
  Snapshot snapshot = sample_snapshot(2, 12, 4);
  constexpr uint64_t kMs = 1'000'000;
  const uint64_t zero = snapshot.consumer.first_ns;
  for (uint64_t i = 0; i < 20; ++i) {
    TraceEvent event;
    event.begin_ns = zero + i * 12 * kMs;
    event.span_ns = event.active_ns = 12 * kMs;
    event.step = i;
    event.kind = i % 2 == 0 ? TraceKind::kUser : TraceKind::kWaitSlot;
    snapshot.workers[0].trace.push_back(event);
    event.count = 5;
    event.active_ns = 2 * kMs;
    snapshot.workers[1].trace.push_back(event);
    event.kind = TraceKind::kConsumerBusy;
    event.count = 1;
    snapshot.consumer_trace.push_back(event);
    snapshot.depth.push_back({event.begin_ns, static_cast<uint32_t>(i % 10)});
  }
  TraceEvent restart;
  restart.begin_ns = zero + kMs;
  restart.kind = TraceKind::kRestart;
  snapshot.workers[1].trace.push_back(restart);
  return snapshot;
}

TEST(Report, is_one_page_with_its_data_inside) {
  const std::string html = report_html(traced_snapshot());
  EXPECT_EQ(html.rfind("<!DOCTYPE html>", 0), 0U);
  EXPECT_EQ(count(html, "{{style}}") + count(html, "{{data}}") + count(html, "{{script}}") +
                count(html, "{{timeline}}"),
            0U);
  const Json data = data_of(html);
  EXPECT_EQ(data["title"], "Digits");
  EXPECT_EQ(data["workers"].size(), 2U);
  EXPECT_EQ(data["workers"][0]["events"].size(), 20U);
  EXPECT_EQ(data["consumer_events"].size(), 20U);
  EXPECT_EQ(data["consumer"]["delivered"], 200);
  EXPECT_EQ(data["depth"].size(), 20U);
  // Times count from the page's zero, in microseconds.
  EXPECT_EQ(data["workers"][0]["events"][1][1], 12'000);
  EXPECT_EQ(data["workers"][0]["events"][1][2], 12'000);
}

TEST(Report, refers_to_nothing_outside_itself) {
  const std::string html = report_html(traced_snapshot());
  EXPECT_EQ(count(html, "http:") + count(html, "https:") + count(html, "//cdn"), 0U);
  EXPECT_EQ(count(html, " src="), 0U);
  EXPECT_EQ(count(html, "url("), 0U);
  EXPECT_EQ(count(html, "@import"), 0U);
  EXPECT_EQ(count(html, "default-src 'none'"), 1U);
}

TEST(Report, text_from_outside_cannot_leave_the_data) {
  const std::string clean = report_html(sample_snapshot(1, 12, 4));
  const std::string evil =
      "</script><script>alert(1)</script><!-- <img src=x> & \" ' \\ \n {{script}}";
  Snapshot snapshot = sample_snapshot(1, 12, 4);
  snapshot.title = evil;
  snapshot.mode = evil;
  snapshot.facts = {{evil, evil}};
  snapshot.workers[0].name = evil;
  snapshot.workers[0].kind = evil;
  snapshot.losses = {{0, 1, evil}};
  const std::string html = report_html(snapshot);
  for (const char* mark : {"<script", "</script", "<!--", "<img", "alert(1)</"}) {
    EXPECT_EQ(count(html, mark), count(clean, mark)) << mark;
  }
  EXPECT_EQ(data_of(html)["losses"][0]["reason"], evil);
  EXPECT_EQ(data_of(html)["title"], evil);
}

TEST(Report, text_that_is_no_utf8_does_not_stop_it) {
  Snapshot snapshot = sample_snapshot(1, 12, 4);
  snapshot.losses = {{0, 1, std::string("caf\xe9 \xff\x00 end", 11)}};
  const Json data = data_of(report_html(snapshot));
  EXPECT_NE(data["losses"][0]["reason"].get<std::string>().find(" end"), std::string::npos);
  EXPECT_NO_THROW(chrome_trace(snapshot));
}

TEST(Report, an_empty_snapshot_is_a_page_too) {
  const Json data = data_of(report_html(Snapshot{}));
  EXPECT_EQ(data["workers"].size(), 0U);
  EXPECT_EQ(data["analysis"]["bottleneck"], "unknown");
}

TEST(Report, stays_small_whatever_was_traced) {
  Snapshot snapshot = sample_snapshot(64, 12, 4);
  std::vector<TraceEvent> trace(TraceRing::kCapacity);
  for (size_t i = 0; i < trace.size(); ++i) {
    trace[i].begin_ns = snapshot.consumer.first_ns + i * 7'654'321;
    trace[i].span_ns = trace[i].active_ns = 7'000'123;
    trace[i].kind = TraceKind::kUser;
    trace[i].step = i;
  }
  for (WorkerSnapshot& worker : snapshot.workers) {
    worker.trace = trace;
  }
  snapshot.losses.assign(50'000, {1, 2, "ValueError"});
  const std::string html = report_html(snapshot);
  EXPECT_LT(html.size(), 10U << 20);
  const Json data = data_of(html);
  // The latest are kept.
  EXPECT_EQ(data["workers"][63]["events"].back()[5], trace.size() - 1);
  EXPECT_EQ(data["losses"].size() + data["losses_left_out"].get<size_t>(), 50'000U);
}

TEST(ChromeTrace, has_the_fields_that_viewers_need) {
  const Json trace = Json::parse(chrome_trace(traced_snapshot()));
  ASSERT_TRUE(trace["traceEvents"].is_array());
  std::set<std::string> phases;
  for (const Json& event : trace["traceEvents"]) {
    const std::string phase = event.at("ph");
    phases.insert(phase);
    EXPECT_TRUE(event.at("pid").is_number());
    EXPECT_TRUE(event.at("name").is_string());
    if (phase != "M") {
      EXPECT_TRUE(event.at("ts").is_number());
    }
    if (phase == "X") {
      EXPECT_TRUE(event.at("dur").is_number());
      EXPECT_TRUE(event.at("tid").is_number());
    }
  }
  EXPECT_EQ(phases, (std::set<std::string>{"C", "M", "X", "i"}));
}

// A viewer draws events wrongly, or not at all, if they overlap on one thread without nesting.
TEST(ChromeTrace, events_of_one_thread_do_not_overlap) {
  Snapshot snapshot = sample_snapshot(1, 12, 4);
  auto ring = std::make_unique<TraceRing>();
  TraceWriter writer(ring.get());
  uint64_t now = 1'000'000;
  for (int i = 0; i < 5'000; ++i) {  // tiny tickets: merged events of two kinds, interleaved
    writer.record(TraceKind::kUser, now, now + 1'000);
    writer.record(TraceKind::kWaitSlot, now + 1'000, now + 1'500);
    now += 2'000;
  }
  snapshot.workers[0].trace = events_of(*ring);
  const Json trace = Json::parse(chrome_trace(snapshot));
  std::map<std::pair<int, int>, double> end;
  int merged = 0;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") {
      double& last = end[{event["pid"], event["tid"]}];
      EXPECT_GE(event["ts"].get<double>() + 1e-6, last);
      last = event["ts"].get<double>() + event["dur"].get<double>();
      merged += event["args"].contains("pieces") ? 1 : 0;
    }
  }
  EXPECT_GT(merged, 2);
}

}  // namespace
}  // namespace penstock
