#include <algorithm>
#include <exception>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/stages/stage_clock.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
namespace {

// An operation, bound to elements of one spec.
struct Bound {
  SpecRef in, out;
  std::unique_ptr<OpRun> run;
  std::vector<std::pair<size_t, size_t>> passed;  // leaf of the result, leaf of the input
};

Bound bound_to(const Op& op, const SpecRef& in, Context& context) {
  Bound bound{in, op.result(*in), op.bind(in, context), {}};
  std::vector<std::optional<size_t>> passes = op.passes(*in);
  for (size_t i = 0; i < passes.size(); ++i) {
    if (passes[i]) bound.passed.emplace_back(i, *passes[i]);
  }
  return bound;
}

class Map : public Indexed {
 public:
  Map(IndexedRef input, OpRef op, uint32_t operation, std::string title)
      : input_(std::move(input)),
        op_(std::move(op)),
        operation_(operation),
        title_(std::move(title)) {
    const auto* below = dynamic_cast<const Map*>(input_.get());
    if (below != nullptr) {
      if (OpRef both = below->op_->followed_by(below->operation_, *op_, operation_)) {
        op_ = std::move(both);
        replaced_ = input_;
        input_ = below->input_;
      }
    }
    if (SpecRef in = input_->spec()) spec_ = op_->result(*in);
  }

  uint64_t length(uint64_t base) const override { return input_->length(base); }
  SpecRef spec() const override { return spec_; }
  bool costly() const override { return op_->costly() || input_->costly(); }
  bool in_place() const override { return !op_->costly() && input_->in_place(); }
  bool python() const override { return op_->python() || input_->python(); }
  Decision decision() const override {
    return op_->user_code() ? Decision::kUndecided : input_->decision();
  }
  std::string origin(const Context& context, const At& at, uint64_t position) const override {
    return input_->origin(context, at, position);
  }
  std::vector<uint64_t> blocks() const override { return input_->blocks(); }
  std::unique_ptr<IndexedReader> reader(Context& context) const override;

  const Indexed& input() const { return *input_; }
  const Op& op() const { return *op_; }
  uint32_t operation() const { return operation_; }
  const std::string& title() const { return title_; }

 private:
  IndexedRef input_;
  // The map whose operation is part of this one's. The plan's numbers of stages are by address.
  IndexedRef replaced_;
  OpRef op_;
  uint32_t operation_;
  std::string title_;
  SpecRef spec_;
};

class MapReader : public IndexedReader {
 public:
  MapReader(const Map& stage, Context& context)
      : stage_(stage),
        context_(context),
        input_(stage.input().open(context)),
        in_(context.scratch) {
    if (SpecRef known = stage.input().spec()) {
      bound_ = bound_to(stage.op(), known, context_);
      bound_.out = stage.spec();  // the same object, which makes comparisons fast
    }
  }

  void fetch(const At& at, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
    const auto end = static_cast<uint32_t>(row + positions.size());
    in_.reset(stage_.input().spec(), end);
    forward_bindings(out);
    input_->fetch(at, positions, in_, row);
    for (auto& [lost, failure] : in_.failures()) out.fail(lost, std::move(failure));
    out.move_notes_from(in_);
    if (in_.spec() == nullptr) return;  // no element was made
    if (bound_.in != in_.spec() && (bound_.in == nullptr || *bound_.in != *in_.spec())) {
      try {
        bound_ = bound_to(stage_.op(), in_.spec(), context_);
      } catch (const Error&) {
        fail_all(positions, out, row, std::current_exception());
        return;
      }
    }
    if (bound_.out != nullptr && !out.settle(bound_.out)) {
      fail_all(positions, out, row,
               std::make_exception_ptr(schema_error(*out.spec(), *bound_.out)));
      return;
    }
    Keys keys(context_, at.epoch, positions, stage_.operation());
    const size_t below = out.failures().size();
    {
      StageClock::Part part(stage_.op().user_code() ? context_.clock : nullptr);
      bound_.run->run(keys, in_, out, row);
    }
    for (auto [to, from] : bound_.passed) pass(from, to, out, row, end);
    out.keep_owners_of(in_);
    for (size_t i = below; i < out.failures().size(); ++i) {
      auto& [lost, failure] = out.failures()[i];
      if (failure.stage.empty()) failure.stage = stage_.title();
      failure.position = positions[lost - row];
      add_origin(at, failure);
    }
  }

 private:
  // Lets the input write unchanged leaves directly to their destination.
  void forward_bindings(Chunk& out) {
    if (out.inferred() || in_.spec() == nullptr) return;
    for (auto [to, from] : bound_.passed) {
      if (out.bound(to)) in_.bind(from, out.dense(to), out.stride(to));
    }
  }

  void pass(size_t from, size_t to, Chunk& out, uint32_t row, uint32_t end) {
    if (out.bound(to) && in_.bound(from)) return;  // the input already wrote the rows there
    for (; row < end; ++row) {
      if ((out.alive() >> row & 1) == 0) continue;
      out.view(to, row, in_.at(from, row), in_.shape(from, row));
    }
  }

  // An error of a native operation is caused by the data, so the error names the record.
  void add_origin(const At& at, Failure& failure) const {
    if (stage_.op().user_code()) return;
    const std::string origin = stage_.origin(context_, at, failure.position);
    if (origin.empty()) return;
    try {
      std::rethrow_exception(failure.error);
    } catch (const Error& error) {
      const std::string text = std::string(error.what()).substr(error.operation().size() + 2);
      failure.error =
          std::make_exception_ptr(Error(error.code(), error.operation(), text + ", of " + origin));
    } catch (...) {  // not an Error: left unchanged
    }
  }

  void fail_all(std::span<const uint64_t> positions, Chunk& out, uint32_t row,
                const std::exception_ptr& error) {
    for (size_t i = 0; i < positions.size(); ++i) {
      out.fail(static_cast<uint32_t>(row + i), {stage_.title(), positions[i], error});
    }
  }

  const Map& stage_;
  Context& context_;
  std::unique_ptr<IndexedReader> input_;
  Chunk in_;
  Bound bound_;
};

std::unique_ptr<IndexedReader> Map::reader(Context& context) const {
  return std::make_unique<MapReader>(*this, context);
}

}  // namespace

Node::Ref nodes::map(Node::Ref input, OpRef op) {
  op = given(std::move(op), "map", "operation");
  return make_node({
      .title = "map(" + op->title() + ")",
      .inputs = {std::move(input)},
      .build =
          [op](std::vector<Built> inputs, Builder& builder) {
            Built built = inputs[0].with([&](IndexedRef below) {
              return std::make_shared<Map>(std::move(below), op, builder.operation(),
                                           builder.title());
            });
            built.may_fail = true;
            return built;
          },
      .inputs_per_element = 1,
  });
}

}  // namespace penstock
