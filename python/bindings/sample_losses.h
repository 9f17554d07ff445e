#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "numpy_api.h"
#include "penstock/pipeline/engine/outcome.h"
#include "sample_settings.h"

namespace penstock::python {

// The error policy of a PythonWorker, and the losses of its current ticket. One thread, with the
// GIL.
class SampleLosses {
 public:
  explicit SampleLosses(const SampleSettings& settings) : settings_(settings) {}

  // Begins a ticket.
  void begin();
  // A sample differs from the others of its batch. If the Loader can make the batch in another way,
  // the exception is raised under every policy.
  void found_unlike() { unlike_ = true; }

  // Whether the policy continues after the current exception.
  bool passes_over() const;
  // Whether the policy replaces the sample that raised the current exception.
  bool replaces() const { return settings_.on_error == OnError::kReplace && passes_over(); }
  // Converts the current exception into a loss, if the policy allows it. False: the exception that
  // is set afterwards must be raised.
  bool note(uint32_t row, uint64_t index);
  // Another sample is in this row, because of `reason`.
  void note_replaced(uint32_t row, uint64_t index, std::string reason);

  bool none() const { return losses_.empty(); }
  // The losses as list_of() makes them.
  Owned list() const;

 private:
  const SampleSettings& settings_;
  std::vector<Loss> losses_;
  bool unlike_ = false;
};

}  // namespace penstock::python
