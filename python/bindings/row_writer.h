#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "numpy_api.h"
#include "penstock/workers/slot.h"
#include "sample.h"
#include "worker_times.h"

namespace penstock::python {

// Writes samples into the rows of a batch, in place. One thread, with the GIL.
class RowWriter {
 public:
  // `times` outlives this.
  explicit RowWriter(WorkerTimes& times) : times_(times) {}

  // Begins a ticket.
  void begin();
  // Writes one sample into a row of the ticket. `index`: for the error's text. False: a Python
  // exception is set, and nothing was added. Error kClosed: the ticket was taken away.
  bool add(Slot& slot, PyObject* sample, uint32_t row, uint64_t index);
  // Whether add() has refused a sample because it differs from the batch's others.
  bool unlike() const { return unlike_; }
  // Bytes of so many rows of the batch.
  uint64_t bytes_of(uint32_t rows) const;
  // The values that are no arrays: a list of columns, each a list. Null: there are none.
  Owned take_objects() { return std::move(columns_); }

 private:
  bool place(Slot& slot, uint64_t index);
  bool refuse_unlike(Slot& slot, uint64_t index);
  bool add_objects(const std::vector<Owned>& objects);

  WorkerTimes& times_;

  // For the current ticket:
  Sample taken_;
  std::byte* base_ = nullptr;
  Owned columns_;
  bool unlike_ = false;

  // The layout of the last batch; the next one probably has the same.
  std::vector<std::byte> known_spec_;
  uint64_t known_rows_ = 0;
  RowLayout known_layout_;
};

}  // namespace penstock::python
