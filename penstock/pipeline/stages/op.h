#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/pipeline/element/chunk.h"
#include "penstock/pipeline/stages/context.h"

namespace penstock {

// A bound operation: runs on chunks of one spec. One thread.
class OpRun {
 public:
  virtual ~OpRun() = default;
  // Makes rows [row, row + keys.size()) of `out` from the same rows of `in`. Rows that failed in
  // `in` are skipped. Report a row's error by out.fail(). Views given to `out` must stay valid as
  // long as the scratch memory, or their owner must be passed to out.keep().
  virtual void run(const Keys& keys, const Chunk& in, Chunk& out, uint32_t row) = 0;
};

// A native operation for map. Immutable: any thread.
class Op {
 public:
  virtual ~Op() = default;
  virtual std::string title() const = 0;  // "parse_example"
  // The spec of the results for elements of spec `in`. nullptr: it is inferred from the first
  // result. Error kInvalidArgument, in the user's terms: the operation cannot be applied to `in`.
  virtual SpecRef result(const ElementSpec& in) const = 0;
  // For each leaf of the result, the leaf of `in` that it equals. The stage passes such leaves on
  // together with their bindings, so run() can ignore them. Empty: no leaf is passed on.
  virtual std::vector<std::optional<size_t>> passes(const ElementSpec& in) const {
    (void)in;
    return {};
  }
  // The operation calls user code, which may take long, throw, or never return.
  virtual bool user_code() const { return false; }
  virtual bool python() const { return false; }  // that user code is Python
  // An element takes long: in front of a stream's stage, workers run the operation.
  virtual bool costly() const { return user_code(); }
  // One operation that does this and then `next`, in one pass over each element; nullptr: there is
  // none. `own`, `operation`: the keys of the random numbers of both, as if they were apart.
  virtual std::shared_ptr<const Op> followed_by(uint32_t own, const Op& next,
                                                uint32_t operation) const {
    return (void)own, (void)next, (void)operation, nullptr;
  }
  // Called again if a later chunk has another spec.
  virtual std::unique_ptr<OpRun> bind(SpecRef in, Context& context) const = 0;
};
using OpRef = std::shared_ptr<const Op>;

}  // namespace penstock
