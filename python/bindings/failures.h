#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "numpy_api.h"
#include "penstock/pipeline/engine/outcome.h"
#include "penstock/workers/ticket_ring_layout.h"

// Exceptions and losses in the form in which workers hand them over, from threads and from
// processes. With the GIL held. A null Owned: a Python exception is set.
namespace penstock::python {

// The place of a failure, beside its exception.
struct FailurePlace {
  uint32_t worker = 0;
  uint32_t row = 0;  // of the ticket
  uint64_t index = 0;
  int64_t last = -1;       // the index of the batch's last row, if the failure is not of one index
  std::string stage = {};  // of a Dataset
};

// (exception, row, index, worker, last): the value of ResultKind::kError, for interop.failure().
Owned failed_result(PyObject* exception, const FailurePlace& place);
// The same for another process: the exception is packed into bytes with its traceback.
Owned packed_failed_result(PyObject* exception, const Ticket& ticket, const FailurePlace& place);
// The exception as bytes, which name worker, stage, epoch and index.
Owned packed_exception(PyObject* exception, const Ticket& ticket, const FailurePlace& place);

// Losses as a list of tuples (row, index, reason, replaced, gap).
Owned list_of(const std::vector<Loss>& losses);
// The losses in such a list; none in None.
std::vector<Loss> losses_in(PyObject* list);

}  // namespace penstock::python
