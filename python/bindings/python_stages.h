#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "penstock/pipeline/plan/node.h"
#include "penstock/pipeline/transformations/transformations.h"
#include "user_object.h"

namespace penstock::python {

// Python functions of stages of a stream. A Python thread of the consumer's process calls them.

// function(carry, element) -> (carry, element)
class PythonScanner : public Scanner {
 public:
  explicit PythonScanner(UserObjectRef function) : function_(std::move(function)) {}

  bool python() const override { return true; }
  std::unique_ptr<Run> bind(const std::string& stage, Context& context) const override;

 private:
  UserObjectRef function_;
};

// function(element) -> penstock.Dataset
class PythonOpener : public Opener {
 public:
  PythonOpener(UserObjectRef function, std::string stage)
      : function_(std::move(function)), stage_(std::move(stage)) {}

  bool python() const override { return true; }
  Opened open(const Keys& keys, const Chunk& in, uint32_t row, Context& context) const override;

 private:
  UserObjectRef function_;
  std::string stage_;  // for errors
};

// Any object with __len__ and __getitem__: element i is object[i]. It is read by a Python thread,
// which takes the GIL once per chunk.
Node::Ref python_source(UserObjectRef object, uint64_t length, std::string title);

// The values of a generator function, or of any callable whose result is iterable. It is called
// again for each epoch, and to restore a place. It runs on a Python thread of the consumer's
// process, some elements ahead.
Node::Ref generator_source(UserObjectRef function, std::string title);

}  // namespace penstock::python
