#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "penstock/observe/snapshot.h"

namespace penstock {

inline constexpr uint64_t kHandOverNs = 20'000;  // of every ticket

// A feed that ran for `batches` batches: `work_ms` of user code in each of `workers` workers, in a
// training loop whose step takes `step_ms`. All figures follow from these four, as they would in a
// run in which every batch costs the same.
inline Snapshot sample_snapshot(uint64_t workers, double work_ms, double step_ms,
                                uint64_t batches = 200) {
  constexpr double kMs = 1e6;
  const double made_every_ms = work_ms / static_cast<double>(workers);
  const double pace_ms = std::max(step_ms, made_every_ms);
  const auto total_ns = static_cast<uint64_t>(pace_ms * kMs * static_cast<double>(batches));

  Snapshot snapshot;
  snapshot.title = "Digits";
  snapshot.mode = "processes";
  snapshot.queue_size = 10;
  snapshot.cores = 4;
  snapshot.facts = {{"start method", "spawn"}, {"Python", "3.11.7"}};
  ConsumerFigures& c = snapshot.consumer;
  c.delivered = batches;
  c.samples = batches * 64;
  c.bytes = batches * 64 * 64 * 64 * 4;
  c.busy_ns = static_cast<uint64_t>(step_ms * kMs * static_cast<double>(batches));
  c.wait_ns = total_ns - c.busy_ns;
  c.first_ns = 5'000'000'000;
  c.last_ns = c.first_ns + total_ns;
  c.epochs = 2;
  snapshot.taken_ns = c.last_ns;
  const uint64_t tickets = batches / workers * workers;
  snapshot.stages = {
      {"__getitem__", static_cast<uint64_t>(work_ms * kMs) * tickets, tickets},
      {std::string(kHandOverStage), kHandOverNs * tickets, tickets},
  };
  for (uint64_t i = 0; i < workers; ++i) {
    WorkerSnapshot worker;
    worker.name = "worker " + std::to_string(i);
    worker.kind = "process";
    worker.pid = static_cast<int64_t>(4200 + i);
    WorkerFigures& w = worker.figures;
    w.tickets = batches / workers;
    w.samples = w.tickets * 64;
    w.busy_ns = (static_cast<uint64_t>(work_ms * kMs) + kHandOverNs) * w.tickets;
    w.wait_ticket_ns = total_ns > w.busy_ns ? total_ns - w.busy_ns : 0;
    w.bytes = w.bytes_avoided = w.samples * 64 * 64 * 4;
    w.copies_avoided = w.tickets;
    snapshot.workers.push_back(worker);
  }
  return snapshot;
}

}  // namespace penstock
