#include "penstock/pipeline/function_op.h"

#include <exception>
#include <utility>

namespace penstock {
namespace {

class FunctionRun : public OpRun {
 public:
  FunctionRun(const std::string& name, const FunctionOp::Function& function, SpecRef in,
              Context& context)
      : name_(name), function_(function), in_(std::move(in)), context_(context) {}

  void run(const Keys& keys, const Chunk& in, Chunk& out, uint32_t row) override {
    for (uint32_t j = 0; j < keys.size(); ++j, ++row) {
      if ((in.alive() >> row & 1) == 0) continue;
      auto result = std::make_shared<Example>();
      std::exception_ptr error = attempt(keys, j, in, row, *result);
      if (error == nullptr) error = give(std::move(result), out, row);
      if (error != nullptr) out.fail(row, {"", 0, std::move(error)});
    }
  }

 private:
  // An exception, or null and `result`.
  std::exception_ptr attempt(const Keys& keys, uint32_t j, const Chunk& in, uint32_t row,
                             Example& result) {
    Context::Watch* watch = context_.watch;
    const uint32_t place = context_.row(row);
    if (watch != nullptr && !watch->progress(place)) {
      throw Error(Code::kClosed, name_, "the ticket was taken away");
    }
    if (watch != nullptr && watch->poisoned(place)) {
      return std::make_exception_ptr(Error(Code::kTimeout, name_, "took longer than is allowed"));
    }
    const Example element = viewed(in, row);
    for (uint32_t n = 0;; ++n) {
      std::exception_ptr error;
      try {
        SampleContext sample = keys.sample(j);
        result = function_(element, sample);
        return nullptr;
      } catch (...) {
        error = std::current_exception();
      }
      const bool again = n < context_.retries;
      if (watch != nullptr) watch->threw(again);
      if (!again) return error;
    }
  }

  Example viewed(const Chunk& in, uint32_t row) const {
    Example element;
    for (size_t i = 0; i < in_->leaves().size(); ++i) {
      const Leaf& leaf = in_->leaves()[i];
      std::span<const int64_t> shape = in.shape(i, row);
      element.set(leaf.name,
                  Tensor::view(leaf.dtype, Shape(shape.begin(), shape.end()),
                               const_cast<std::byte*>(in.at(i, row)), nullptr, {}, true));
    }
    return element;
  }

  // The result as a row of `out`, which keeps it. An exception: it cannot be one.
  std::exception_ptr give(std::shared_ptr<Example> result, Chunk& out, uint32_t row) {
    try {
      if (!fits(*result)) spec_ = spec_of(*result);
    } catch (const Error&) {
      return std::current_exception();
    }
    if (!out.settle(spec_)) {
      return std::make_exception_ptr(Error(Code::kInvalidArgument, name_,
                                           "results must be alike: one is " + spec_->to_string() +
                                               ", another " + out.spec()->to_string()));
    }
    for (size_t i = 0; i < result->size(); ++i) {
      const auto& [name, tensor] = (*result)[i];
      if (!tensor.is_contiguous()) result->set(name, tensor.copy());
      const Tensor& given = (*result)[i].second;
      out.view(i, row, given.data(), given.shape());
    }
    out.keep(std::move(result));
    return nullptr;
  }

  // It is what spec_ says.
  bool fits(const Example& result) const {
    if (spec_ == nullptr || result.size() != spec_->leaves().size()) return false;
    for (size_t i = 0; i < result.size(); ++i) {
      const auto& [name, tensor] = result[i];
      const Leaf& leaf = spec_->leaves()[i];
      if (!tensor.defined() || name != leaf.name || tensor.dtype() != leaf.dtype ||
          tensor.ndim() != leaf.shape.size()) {
        return false;
      }
      for (size_t axis = 0; axis < leaf.shape.size(); ++axis) {
        if (leaf.shape[axis] >= 0 && leaf.shape[axis] != tensor.dim(axis)) return false;
      }
    }
    return true;
  }

  SpecRef spec_of(const Example& result) const {
    if (result.empty()) throw Error(Code::kInvalidArgument, name_, "the result is empty");
    std::vector<Leaf> leaves;
    bool same = result.size() == in_->leaves().size();
    for (const auto& [name, tensor] : result) {
      if (!tensor.defined()) {
        throw Error(Code::kInvalidArgument, name_, "'" + name + "' of the result has no data");
      }
      Leaf leaf{name, LeafKind::kDense, tensor.dtype(), tensor.shape()};
      same = same && in_->leaves()[leaves.size()].name == name;
      if (auto was = in_->find(name)) stay_variable(in_->leaves()[*was], leaf);
      leaves.push_back(std::move(leaf));
    }
    return std::make_shared<ElementSpec>(std::move(leaves), same ? in_->nest() : std::string());
  }

  static void stay_variable(const Leaf& was, Leaf& leaf) {
    if (was.kind == LeafKind::kDense || was.dtype != leaf.dtype ||
        was.shape.size() != leaf.shape.size()) {
      return;
    }
    leaf.kind = was.kind;
    for (size_t axis = 0; axis < was.shape.size(); ++axis) {
      if (was.shape[axis] < 0) leaf.shape[axis] = -1;
    }
  }

  const std::string& name_;
  const FunctionOp::Function& function_;
  SpecRef in_;
  Context& context_;
  SpecRef spec_;  // of the last result
};

}  // namespace

std::unique_ptr<OpRun> FunctionOp::bind(SpecRef in, Context& context) const {
  return std::make_unique<FunctionRun>(name_, function_, std::move(in), context);
}

}  // namespace penstock
