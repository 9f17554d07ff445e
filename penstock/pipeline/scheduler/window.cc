#include "penstock/pipeline/scheduler/window.h"

#include <algorithm>

#include "penstock/pipeline/scheduler/granules.h"

namespace penstock {

uint64_t TicketWindow::size(uint32_t queue, uint32_t workers) const {
  uint64_t most = queue + workers;
  // The size of a batch is unknown at first: one batch per worker is allowed.
  if (!sized_ && options_.max_bytes != UINT64_MAX) {
    most = std::min<uint64_t>(most, std::max(workers, 1u));
  }
  // A ticket's input may use memory before the batch does.
  const uint64_t input = tickets_.input_bytes();
  const uint64_t batch = sized_ ? batch_bytes_ : input, bytes = input + batch;
  if (bytes != 0) {
    // At least least(), by default 1: the lowest undelivered ticket always gets its slot.
    const uint64_t left = options_.max_bytes - std::min(options_.max_bytes, tickets_.spent_bytes());
    most =
        std::min(most, std::max<uint64_t>(fitting(left, bytes, tickets_.work_bytes(batch), workers),
                                          tickets_.least()));
  }
  return most;
}

// The number of batches that fit into `left` bytes. Each worker makes one at a time, for which it
// needs `work` additional bytes.
uint64_t TicketWindow::fitting(uint64_t left, uint64_t bytes, uint64_t work,
                               uint32_t workers) const {
  const uint64_t at_work = std::max(workers, 1u);
  const uint64_t made = left / (bytes + work);
  return made < at_work ? made : (left - at_work * work) / bytes;
}

uint32_t TicketWindow::granules_of(uint32_t rows, uint32_t queue, uint32_t workers) const {
  if (options_.granule_rows != 0) {
    const uint32_t share = options_.granule_rows;
    return std::clamp((rows + share - 1) / share, 1u, ring_.granules());
  }
  if (ring_.granules() == 1 || !tickets_.divisible()) return 1;
  BatchDivision of{rows, ring_.sleepers().active(), size(queue, workers),
                   ring_.head() == ring_.posted()};
  if (!of.first && of.window >= of.workers) return 1;  // the usual case
  of.row_ns = row_ns();
  of.most = ring_.granules();
  return granules_for(of);
}

uint64_t TicketWindow::row_ns() const {
  uint64_t busy_ns = 0, rows = 0;
  for (uint32_t w = 0; w < ring_.workers(); ++w) {
    const WorkerCounters& counters = ring_.place(w).counters;
    busy_ns += counters.busy_ns.get();
    rows += counters.samples.get();
  }
  return rows == 0 ? 0 : std::max<uint64_t>(busy_ns / rows, 1);
}

void TicketWindow::delivered(uint64_t bytes) {
  batch_bytes_ = std::max(batch_bytes_, bytes);
  sized_ = true;
}

void TicketWindow::filled(uint32_t rows, uint64_t bytes) {
  if (rows < block_rows_) return;  // a short last batch does not predict the next ones
  block_rows_ = rows;
  block_bytes_ = bytes;
}

}  // namespace penstock
