#pragma once

#include <memory>
#include <string>

#include "numpy_api.h"
#include "penstock/pipeline/transformations/interleave_stream.h"
#include "penstock/pipeline/transformations/scan.h"

namespace penstock::python {

// Functions in Python of stages that are streams: the thread that calls them is one of Python's, in
// the consumer's process.

// function(carry, element) -> (carry, element)
class PythonScanner : public Scanner {
 public:
  // With the GIL held.
  explicit PythonScanner(PyObject* function);

  bool python() const override { return true; }
  std::unique_ptr<Run> bind(const std::string& stage, Context& context) const override;

 private:
  std::shared_ptr<void> function_;
};

// function(element) -> penstock.Dataset
class PythonOpener : public Opener {
 public:
  // With the GIL held.
  PythonOpener(PyObject* function, std::string stage);

  bool python() const override { return true; }
  Opened open(const Keys& keys, const Chunk& in, uint32_t row, Context& context) const override;

 private:
  std::shared_ptr<void> function_;
  std::string stage_;  // for errors
};

}  // namespace penstock::python
