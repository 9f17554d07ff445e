#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <utility>

#include "python_loader.h"

namespace penstock::python {

// `for batch in loader`: one epoch.
class EpochIterator {
 public:
  EpochIterator(nanobind::object loader, uint64_t epoch, nanobind::object finished)
      : loader_(std::move(loader)),
        epoch_(epoch),
        serial_(engine().begin_iteration()),
        finished_(std::move(finished)) {}
  nanobind::object next();
  // For callers that use the PythonLoader directly.
  uint64_t serial() const { return serial_; }
  // For Python's garbage collector.
  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  PythonLoader& engine() { return nanobind::cast<PythonLoader&>(loader_); }

  nanobind::object loader_;
  uint64_t epoch_, serial_;
  nanobind::object finished_;  // called with the epoch when it is over
  bool gave_all_ = false;
  bool over_ = false;
};

}  // namespace penstock::python
