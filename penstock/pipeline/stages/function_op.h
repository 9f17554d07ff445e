#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/stages/op.h"

namespace penstock {

// A user function that makes one element of another. Its argument has read-only views, valid until
// it returns. The result may contain these views; nothing else may keep them. The
// function is called from several threads at once. An exception is the element's failure.
//
// The schema of the result is inferred: names, dtypes and shapes are those of the returned Example.
// A leaf with the name, dtype and number of axes of a string or ragged input leaf has that leaf's
// kind.
//
// Each call allocates about once per tensor; map_field and user-defined Ops avoid that.
class FunctionOp : public Op {
 public:
  using Function = std::function<Example(const Example& element, SampleContext& context)>;

  // `name`: used in titles, states and errors. Error kInvalidArgument: the name is not UTF-8, or
  // the function is null.
  FunctionOp(std::string name, Function function)
      : name_(utf8_name(std::move(name), "map")),
        function_(given(std::move(function), "map", "function")) {}

  std::string title() const override { return name_; }
  SpecRef result(const ElementSpec&) const override { return nullptr; }
  bool user_code() const override { return true; }
  std::unique_ptr<OpRun> bind(SpecRef in, Context& context) const override;

 private:
  std::string name_;
  Function function_;
};

// A user function of one field's values, which writes its result straight to the destination
// without allocating. It must be quick, because there is no timeout and no retry. It is called from
// several threads at once. An exception is the element's failure.
template <class In, class Out>
class FieldFunctionOp : public FieldOp {
 public:
  using Function = std::function<void(std::span<const In> values, std::span<Out> result)>;

  // `shape`: of the result; nothing: that of the values. Error kInvalidArgument when the operation
  // is applied: the field's dtype is not In.
  FieldFunctionOp(std::string name, std::string field, std::optional<Shape> shape,
                  Function function)
      : FieldOp(std::move(name), {std::move(field)}),
        shape_(std::move(shape)),
        function_(given(std::move(function), "map_field", "function")) {
    if (shape_) (void)element_count(*shape_);
  }

  std::string title() const override { return name() + "(" + fields()[0] + ")"; }

 private:
  class Run : public FieldOp::Run {
   public:
    Run(const Function& function, Scratch& scratch) : function_(function), scratch_(scratch) {}

    void run(const Chunk& in, size_t from, Chunk& out, size_t to, uint32_t row,
             uint32_t end) override {
      each_alive(in.alive() & out.alive(), row, end, [&](uint32_t i) {
        std::span<const int64_t> shape = in.shape(from, i);
        const uint64_t values = values_of(shape);
        const uint64_t results = values_of(
            out.spec()->leaves()[to].fixed() ? std::span(out.spec()->leaves()[to].shape) : shape);
        std::byte* place = place_row(out, to, i, results * sizeof(Out), shape, scratch_);
        const std::byte* data = aligned(in.at(from, i), values);
        try {
          function_({reinterpret_cast<const In*>(data), values},
                    {reinterpret_cast<Out*>(place), results});
        } catch (...) {
          out.fail(i, {"", 0, std::current_exception()});
        }
      });
    }

   private:
    // Views of a file's bytes may be unaligned.
    const std::byte* aligned(const std::byte* data, uint64_t values) {
      if (reinterpret_cast<uintptr_t>(data) % alignof(In) == 0) return data;
      std::byte* copy = scratch_.take(values * sizeof(In));
      std::copy_n(data, values * sizeof(In), copy);
      return copy;
    }

    const Function& function_;
    Scratch& scratch_;
  };

  bool applies(const Leaf&) const override { return false; }
  Leaf result_of(const Leaf& in) const override {
    if (in.dtype != dtype_of<In>()) {
      throw Error(Code::kInvalidArgument, name(),
                  "'" + in.name + "' is " + std::string(name_of(in.dtype)) + ", and not " +
                      std::string(name_of(dtype_of<In>())));
    }
    if (shape_) return {in.name, LeafKind::kDense, dtype_of<Out>(), *shape_};
    Leaf out = in;
    out.dtype = dtype_of<Out>();
    if (out.kind == LeafKind::kText) out.kind = LeafKind::kBytes;
    if (out.kind == LeafKind::kBytes && out.dtype != DType::kUint8) out.kind = LeafKind::kDense;
    return out;
  }
  std::unique_ptr<FieldOp::Run> bind_leaf(const Leaf&, const Leaf&,
                                          Context& context) const override {
    return std::make_unique<Run>(function_, context.scratch);
  }

  std::optional<Shape> shape_;
  Function function_;
};

}  // namespace penstock
