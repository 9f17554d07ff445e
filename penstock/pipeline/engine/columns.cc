#include "penstock/pipeline/engine/columns.h"

#include <cstring>
#include <string>

#include "penstock/base/error.h"
#include "penstock/memory/copy.h"

namespace penstock {

void ColumnsWorker::run(const Ticket& ticket, Slot& slot) {
  if (layout_.rows() != ticket.rows || layout_.fields().empty()) {
    layout_ = RowLayout(fields_, ticket.rows);
  }
  uint32_t count = ticket.end - ticket.begin;
  indices_.resize(count);
  if (const std::byte* listed = slot.indices()) {
    take_listed(listed, ticket.begin);
  } else {
    order_.indices(ticket.epoch, ticket.base, ticket.step, ticket.begin, indices_);
  }
  std::byte* base = slot.rows(spec_, layout_.bytes());
  if (base == nullptr) {
    throw Error(Code::kInternal, "batch", "two layouts for columns of one shape");
  }
  uint64_t bytes = 0;
  Slot::Write ours(slot);
  if (!ours) throw Error(Code::kClosed, "batch", "the ticket was taken away");
  for (size_t c = 0; c < columns_.size(); ++c) {
    const Column& column = columns_[c];
    gather_rows(layout_.row(base, c, ticket.begin), column.data, column.row_bytes, column.stride,
                indices_.data(), count);
    bytes += column.row_bytes * count;
  }
  WorkerCounters& counters = slot.counters();
  counters.samples.add_single_writer(count);
  counters.bytes.add_single_writer(bytes);
  count_copy(counters, CopyReason::kRow, bytes);
  slot.finish_inline(ResultKind::kRows, bytes, {});
}

// A sampler's own indices: two words (0: plain numbers follow; how many bytes), then the numbers.
void ColumnsWorker::take_listed(const std::byte* listed, uint32_t begin) {
  uint64_t kind;
  std::memcpy(&kind, listed, sizeof(kind));
  if (kind != 0) throw Error(Code::kInternal, "batch", "indices of columns must be numbers");
  std::memcpy(indices_.data(), listed + (2 + begin) * sizeof(uint64_t),
              indices_.size() * sizeof(uint64_t));
  for (uint64_t index : indices_) {
    if (index >= order_.options().length) {
      throw Error(Code::kInvalidArgument, "batch",
                  "index " + std::to_string(index) + " is beyond the last row");
    }
  }
}

}  // namespace penstock
