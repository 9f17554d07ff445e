#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "failures.h"
#include "numpy_api.h"
#include "sample_calls.h"
#include "sample_losses.h"
#include "ticket_indices.h"

namespace penstock::python {

// Fetches the samples of a ticket from a map: `source[index]`, or all at once by its __getitems__.
// One thread, with the GIL.
class SampleFetcher {
 public:
  // Uses a sample: as a row, or an element of a list. False: a Python exception is set.
  using Use = std::function<bool(PyObject* sample, uint32_t row, uint64_t key)>;

  // Settings, calls and losses outlive this.
  SampleFetcher(const SampleSettings& settings, PyObject* source, SampleCalls& calls,
                SampleLosses& losses);

  // The length of the data set has changed.
  void set_length(uint64_t length) { indices_.set_length(length); }
  // Fetches the ticket's samples one after the other, under the error policy, and uses each.
  // Returns the place of the exception that is set and must be raised. Nothing: all samples were
  // used, or are losses.
  std::optional<FailurePlace> fetch(Slot& slot, const Use& use);
  // The place of an exception for which no single sample is the reason.
  FailurePlace whole(const Ticket& ticket) const;

 private:
  void fetch_all(Slot& slot, std::vector<Owned>& samples);
  Owned get_all(uint32_t count);
  bool sample(Slot& slot, uint32_t row, Owned fetched, const Use& use);
  bool substitute(Slot& slot, uint32_t row, uint64_t key, const Use& use);
  Owned get(Slot& slot, uint32_t row, uint64_t key);
  Owned attempt(Slot& slot, PyObject* index, uint64_t key);
  void tell_together();

  const SampleSettings& settings_;
  Owned source_, getitems_;
  SampleCalls& calls_;
  SampleLosses& losses_;
  TicketIndices indices_;
  Owned together_;  // an exception of __getitems__, after which samples are fetched one by one
};

}  // namespace penstock::python
