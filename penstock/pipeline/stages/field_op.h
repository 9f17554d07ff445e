#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/stages/op.h"

namespace penstock {

// An operation on some leaves, each by itself; the others are passed on.
class FieldOp : public Op {
 public:
  // What is done to one leaf. One thread.
  class Run {
   public:
    virtual ~Run() = default;
    // Leaf `from` of `in` becomes leaf `to` of `out`, in rows [row, end) that are alive.
    virtual void run(const Chunk& in, size_t from, Chunk& out, size_t to, uint32_t row,
                     uint32_t end) = 0;
  };

  // Error kInvalidArgument: there is no such field, none is of the kind, or result_of refuses one.
  SpecRef result(const ElementSpec& in) const final;
  std::vector<std::optional<size_t>> passes(const ElementSpec& in) const final;
  std::unique_ptr<OpRun> bind(SpecRef in, Context& context) const final;

 protected:
  // `name`: of the operation, in errors. `fields`: names of leaves; empty: all that it applies to.
  FieldOp(std::string name, std::vector<std::string> fields)
      : name_(name_of_user(std::move(name), "map")), fields_(std::move(fields)) {
    for (const std::string& field : fields_) (void)name_of_user(field, name_.c_str());
  }

  const std::string& name() const { return name_; }
  const std::vector<std::string>& fields() const { return fields_; }
  // A leaf that nobody named.
  virtual bool applies(const Leaf& leaf) const = 0;
  // What becomes of a leaf. Error kInvalidArgument: it cannot be.
  virtual Leaf result_of(const Leaf& in) const = 0;
  virtual std::unique_ptr<Run> bind_leaf(const Leaf& in, const Leaf& out,
                                         Context& context) const = 0;

 private:
  std::vector<bool> chosen(const ElementSpec& in) const;

  std::string name_;
  std::vector<std::string> fields_;
};

// Where a row of `out` is to be made, `bytes` long: where it is wanted, or in the leaf's column; of
// a leaf whose lengths differ in `scratch`, with `shape`.
std::byte* place_row(Chunk& out, size_t leaf, uint32_t row, uint64_t bytes,
                     std::span<const int64_t> shape, Scratch& scratch);

uint64_t values_of(std::span<const int64_t> shape);

// f(row) for the rows of [row, end) that are in `alive`.
template <class F>
void each_alive(uint64_t alive, uint32_t row, uint32_t end, F f) {
  for (; row < end; ++row) {
    if (alive >> row & 1) f(row);
  }
}

// Asks for rows of a leaf some 4 KB ahead of their turn, as gather_rows does: those of a shuffled
// array lie anywhere, and waiting for them costs more than most operations. One thread.
class FetchAhead {
 public:
  // For rows [row, end) that are read one after the other. Leaves whose lengths differ: does
  // nothing.
  FetchAhead(const Chunk& in, size_t leaf, uint32_t row, uint32_t end);

  // Row i has its turn.
  [[gnu::always_inline]] void turn_of(uint32_t i) const {
    if (i + ahead_ < end_) fetch(i + ahead_);
  }

 private:
  static constexpr size_t kLine = 64, kMaxLines = 16;  // what is longer is read ahead of by itself

  // Inline, for GCC takes calls of functions that do nothing but fetch for calls that do nothing.
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
