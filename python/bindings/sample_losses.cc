#include "sample_losses.h"

#include <utility>

#include "failures.h"
#include "python_op.h"

namespace penstock::python {

void SampleLosses::begin() {
  losses_.clear();
  unlike_ = false;
}

bool SampleLosses::passes_over() const {
  return settings_.on_error != OnError::kRaise && raised_error() &&
         !(unlike_ && settings_.falls_back);
}

bool SampleLosses::note(uint32_t row, uint64_t index) {
  if (!passes_over()) return false;
  const Owned exception = exception_in_flight();
  std::string reason = text_of_exception(exception.get());
  if (PyErr_Occurred() != nullptr) return false;
  const bool gap = settings_.source == SampleSettings::Source::kMap;
  losses_.push_back({row, index, false, std::move(reason), nullptr, {}, gap});
  return true;
}

void SampleLosses::note_replaced(uint32_t row, uint64_t index, std::string reason) {
  losses_.push_back({row, index, true, std::move(reason), nullptr, {}, false});
}

Owned SampleLosses::list() const { return list_of(losses_); }

}  // namespace penstock::python
