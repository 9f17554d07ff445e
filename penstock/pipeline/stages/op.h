#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/pipeline/element/chunk.h"
#include "penstock/pipeline/element/given.h"
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

// An operation on single leaves, each independent of the others. Other leaves are passed on
// unchanged.
class FieldOp : public Op {
 public:
  // The operation on one leaf. One thread.
  class Run {
   public:
    virtual ~Run() = default;
    // Makes leaf `to` of `out` from leaf `from` of `in`, for the alive rows of [row, end).
    virtual void run(const Chunk& in, size_t from, Chunk& out, size_t to, uint32_t row,
                     uint32_t end) = 0;
  };

  // Error kInvalidArgument: a named field does not exist, no leaf has the right kind, or result_of
  // refuses a leaf.
  SpecRef result(const ElementSpec& in) const final;
  std::vector<std::optional<size_t>> passes(const ElementSpec& in) const final;
  std::unique_ptr<OpRun> bind(SpecRef in, Context& context) const final;

 protected:
  // `name`: the operation's name, for errors. `fields`: names of leaves; empty: all leaves for
  // which applies() is true.
  FieldOp(std::string name, std::vector<std::string> fields)
      : name_(utf8_name(std::move(name), "map")), fields_(std::move(fields)) {
    for (const std::string& field : fields_) (void)utf8_name(field, name_.c_str());
  }

  const std::string& name() const { return name_; }
  const std::vector<std::string>& fields() const { return fields_; }
  // Whether the operation is applied to this leaf if no fields are named.
  virtual bool applies(const Leaf& leaf) const = 0;
  // The leaf that the operation makes of `in`. Error kInvalidArgument: the operation cannot be
  // applied to it.
  virtual Leaf result_of(const Leaf& in) const = 0;
  virtual std::unique_ptr<Run> bind_leaf(const Leaf& in, const Leaf& out,
                                         Context& context) const = 0;

 private:
  std::vector<bool> chosen(const ElementSpec& in) const;

  std::string name_;
  std::vector<std::string> fields_;
};

// Memory for a row of `out`, `bytes` long. A fixed leaf's row lies in its column. A variable leaf's
// row lies in `scratch` and gets `shape`.
std::byte* place_row(Chunk& out, size_t leaf, uint32_t row, uint64_t bytes,
                     std::span<const int64_t> shape, Scratch& scratch);

uint64_t values_of(std::span<const int64_t> shape);

// Calls f(row) for the rows of [row, end) whose bit is set in `alive`.
template <class F>
void each_alive(uint64_t alive, uint32_t row, uint32_t end, F f) {
  for (; row < end; ++row) {
    if (alive >> row & 1) f(row);
  }
}

// Prefetches rows of a leaf about 4 KB before they are read, as gather_rows does. The rows of a
// shuffled array are scattered in memory, and the cache misses would cost more than most
// operations. One thread.
class FetchAhead {
 public:
  // For rows [row, end), read in order. Does nothing for variable leaves.
  FetchAhead(const Chunk& in, size_t leaf, uint32_t row, uint32_t end);

  // Call it when row i is read.
  [[gnu::always_inline]] void turn_of(uint32_t i) const {
    if (i + ahead_ < end_) fetch(i + ahead_);
  }

 private:
  static constexpr size_t kLine = 64, kMaxLines = 16;  // longer rows are prefetched by the hardware

  // Must be inline: GCC removes calls of functions that only prefetch, since these have no side
  // effects.
  [[gnu::always_inline]] void fetch(uint32_t row) const {
    if ((in_.alive() >> row & 1) == 0) return;
    const std::byte* at = in_.at(leaf_, row);
    for (size_t line = 0; line < lines_; ++line) __builtin_prefetch(at + line * kLine);
  }

  const Chunk& in_;
  size_t leaf_, lines_ = 0;
  uint32_t ahead_ = 0, end_;
};

}  // namespace penstock
