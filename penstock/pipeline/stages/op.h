#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/pipeline/element/chunk.h"
#include "penstock/pipeline/stages/context.h"

namespace penstock {

// An operation at work on chunks of one spec. One thread.
class OpRun {
 public:
  virtual ~OpRun() = default;
  // Makes rows [row, row + keys.size()) of `out` from the same rows of `in`; those that are lost in
  // `in` are passed by. What goes wrong with a row is out.fail(). Views that `out` is given must
  // live as long as the scratch, or out.keep() what they point into.
  virtual void run(const Keys& keys, const Chunk& in, Chunk& out, uint32_t row) = 0;
};

// What map does, natively. Immutable: any thread.
class Op {
 public:
  virtual ~Op() = default;
  virtual std::string title() const = 0;  // "parse_example"
  // What becomes of elements like these. nullptr: only the first one tells. Error kInvalidArgument,
  // in the user's terms: it cannot be applied to them.
  virtual SpecRef result(const ElementSpec& in) const = 0;
  // Leaf of the result -> the leaf of `in` that it is, unchanged: the stage hands its binding on,
  // and run() need not do anything about it. Empty: none is.
  virtual std::vector<std::optional<size_t>> passes(const ElementSpec& in) const {
    (void)in;
    return {};
  }
  // It calls code that is not penstock's: it may take long, throw, or never come back.
  virtual bool user_code() const { return false; }
  virtual bool python() const { return false; }  // and that is Python
  // It takes long for an element: streams have it done by workers.
  virtual bool costly() const { return user_code(); }
  // One operation that is this and then `next`, in a pass over each element; nullptr: there is
  // none. `own`, `operation`: what keys the random numbers of either, as long as they are two.
  virtual std::shared_ptr<const Op> followed_by(uint32_t own, const Op& next,
                                                uint32_t operation) const {
    return (void)own, (void)next, (void)operation, nullptr;
  }
  // Called again if a later chunk has another spec.
  virtual std::unique_ptr<OpRun> bind(SpecRef in, Context& context) const = 0;
};
using OpRef = std::shared_ptr<const Op>;

}  // namespace penstock
