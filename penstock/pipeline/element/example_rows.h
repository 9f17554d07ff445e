#pragma once

#include <exception>
#include <memory>
#include <string>

#include "penstock/memory/example.h"
#include "penstock/pipeline/element/chunk.h"

namespace penstock {

// The argument of a user's function for one element: read-only views of the row, valid as long as
// the row.
Example viewed(const Chunk& in, uint32_t row);

// Whether an element has the leaves of a spec: equal names, dtypes and fixed lengths.
bool fits(const Example& element, const ElementSpec& spec);

// Turns results of user functions into rows of chunks. Names, dtypes and shapes are those of the
// results. One thread.
class ExampleRows {
 public:
  // `name`: the function's name, for errors. A leaf with the name, dtype and number of axes of a
  // string or ragged leaf of `like` gets that leaf's kind and its variable axes. `like` may be
  // null.
  explicit ExampleRows(std::string name, SpecRef like = nullptr)
      : name_(std::move(name)), like_(std::move(like)) {}

  // Makes `result` a row of `out`, which keeps it alive. Returns an exception if it cannot be a
  // row.
  std::exception_ptr give(std::shared_ptr<Example> result, Chunk& out, uint32_t row);
  // Makes the row the Example itself, as an object of this process: `out` has one leaf of kind
  // kObject.
  static void give_whole(std::shared_ptr<Example> result, Chunk& out, uint32_t row);

 private:
  SpecRef spec_of(const Example& result) const;

  std::string name_;
  SpecRef like_;
  SpecRef spec_;  // of the last result
};

}  // namespace penstock
