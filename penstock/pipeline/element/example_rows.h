#pragma once

#include <exception>
#include <memory>
#include <string>

#include "penstock/memory/example.h"
#include "penstock/pipeline/element/chunk.h"

namespace penstock {

// What a function of the user's is given for an element: read-only views of a row, good as long as
// that is.
Example viewed(const Chunk& in, uint32_t row);

// What functions of the user's gave, as rows of chunks: names, dtypes and shapes are the results'
// own. One thread.
class ExampleRows {
 public:
  // `name`: of the function, in errors. A leaf that has the name, dtype and axes of a string or
  // ragged leaf of `like` is one, too; nullptr: none is.
  explicit ExampleRows(std::string name, SpecRef like = nullptr)
      : name_(std::move(name)), like_(std::move(like)) {}

  // `result` becomes a row of `out`, which keeps it. An exception: it cannot be one.
  std::exception_ptr give(std::shared_ptr<Example> result, Chunk& out, uint32_t row);
  // The row is the Example itself, as an object of this process: `out` has one leaf, a kObject.
  static void give_whole(std::shared_ptr<Example> result, Chunk& out, uint32_t row);

 private:
  bool fits(const Example& result) const;
  SpecRef spec_of(const Example& result) const;

  std::string name_;
  SpecRef like_;
  SpecRef spec_;  // of the last result
};

}  // namespace penstock
