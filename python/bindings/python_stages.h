#pragma once

#include <memory>
#include <string>
#include <utility>

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

}  // namespace penstock::python
