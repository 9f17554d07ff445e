#include "penstock/pipeline/scheduler/window.h"

#include <algorithm>
#include <utility>

namespace penstock {

uint32_t granules_for(const BatchDivision& of) {
  if (of.workers < 2 || of.rows < 2 || of.most < 2) return 1;
  uint64_t parts = 1;
  if (of.window < of.workers) {
    parts = (uint64_t{2} * of.workers + of.window - 1) / of.window;
  } else if (of.first) {
    parts = of.workers;
  }
  if (of.row_ns != 0) parts = std::min(parts, of.rows * of.row_ns / kGranuleWorthNs);
  parts = std::clamp<uint64_t>(parts, 1, std::min(of.rows, of.most));
  const uint64_t share = (of.rows + parts - 1) / parts;
  return static_cast<uint32_t>((of.rows + share - 1) / share);
}

uint32_t max_granules(uint32_t workers, uint64_t rows) {
  if (workers < 2) return 1;
  return static_cast<uint32_t>(std::min({uint64_t{2} * workers, rows, uint64_t{kMaxGranules}}));
}

uint64_t TicketWindow::most(uint32_t queue, uint32_t workers) const {
  const uint64_t most = uint64_t{queue} + workers, at_work = std::max(workers, 1u);
  if (!holder_.budget().bounded()) return most;
  // The size of a batch is unknown at first: one batch per worker is allowed.
  if (!sized_) return std::min(most, at_work);
  return options_.slow_start ? std::min(most, at_work + delivered_) : most;
}

// A ticket's input may use memory before the batch does. A batch of unknown size is estimated to be
// as large as its input.
uint64_t TicketWindow::ticket_bytes() const {
  const uint64_t input = tickets_.input_bytes();
  return input + (sized_ ? batch_bytes_ : input);
}

uint64_t TicketWindow::work_bytes() const {
  return tickets_.work_bytes(sized_ ? batch_bytes_ : tickets_.input_bytes());
}

// Each worker makes one batch at a time, for which it needs additional bytes.
uint64_t TicketWindow::bytes_of(uint64_t tickets, uint32_t workers) const {
  const uint64_t at_work = std::min<uint64_t>(tickets, std::max(workers, 1u));
  return tickets * ticket_bytes() + at_work * work_bytes();
}

uint64_t TicketWindow::size(uint32_t queue, uint32_t workers) const {
  const uint64_t most = this->most(queue, workers), bytes = ticket_bytes();
  if (bytes == 0) return most;
  const uint64_t space = holder_.space(), kept = tickets_.kept_bytes();
  const uint64_t left = space - std::min(space, kept);
  const uint64_t at_work = std::max(workers, 1u), work = work_bytes();
  uint64_t fit = left / (bytes + work);
  if (fit >= at_work) fit = (left - at_work * work) / bytes;
  return std::min(most, std::max<uint64_t>(fit, 1));
}

void TicketWindow::set_minimum(uint64_t bytes) {
  if (bytes != minimum_) holder_.set_minimum(minimum_ = bytes);
}

bool TicketWindow::take_one_more(uint64_t in_flight, uint32_t workers) {
  if (!holder_.budget().bounded()) return true;
  const uint64_t needed = tickets_.kept_bytes() + bytes_of(in_flight + 1, workers);
  if (holder_.alone()) return in_flight == 0 || needed <= holder_.budget().total();
  set_minimum(bytes_of(1, workers));
  if (needed <= held_) return true;
  if (!holder_.take(needed - held_)) {
    asks_ = true;
    return false;
  }
  held_ = needed;
  return true;
}

void TicketWindow::hold(uint64_t in_flight, uint32_t workers, bool more) {
  if (!holder_.budget().bounded() || holder_.alone()) return;
  const uint64_t needed = tickets_.kept_bytes() + bytes_of(in_flight, workers);
  set_minimum(more || in_flight != 0 ? bytes_of(1, workers) : 0);
  const uint64_t before = std::exchange(held_, needed);
  if (needed > before) holder_.add(needed - before);
  if (needed < before) holder_.give_back(before - needed);
}

void TicketWindow::withdraw() {
  if (std::exchange(asks_, false)) holder_.withdraw();
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
  ++delivered_;
  sized_ = true;
}

void TicketWindow::filled(uint32_t rows, uint64_t bytes) {
  if (rows < block_rows_) return;  // a short last batch does not predict the next ones
  block_rows_ = rows;
  block_bytes_ = bytes;
}

}  // namespace penstock
