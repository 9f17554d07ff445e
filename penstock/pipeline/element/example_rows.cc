#include "penstock/pipeline/element/example_rows.h"

#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/pipeline/element/block.h"

namespace penstock {
namespace {

void stay_variable(const Leaf& was, Leaf& leaf) {
  if (was.kind == LeafKind::kDense || was.dtype != leaf.dtype ||
      was.shape.size() != leaf.shape.size()) {
    return;
  }
  leaf.kind = was.kind;
  for (size_t axis = 0; axis < was.shape.size(); ++axis) {
    if (was.shape[axis] < 0) leaf.shape[axis] = -1;
  }
}

}  // namespace

Example viewed(const Chunk& in, uint32_t row) {
  Example element;
  for (size_t i = 0; i < in.spec()->leaves().size(); ++i) {
    const Leaf& leaf = in.spec()->leaves()[i];
    std::span<const int64_t> shape = in.shape(i, row);
    element.set(leaf.name, Tensor::view(leaf.dtype, Shape(shape.begin(), shape.end()),
                                        const_cast<std::byte*>(in.at(i, row)), nullptr, {}, true));
  }
  return expand_columns(std::move(element), *in.spec());
}

std::exception_ptr ExampleRows::give(std::shared_ptr<Example> result, Chunk& out, uint32_t row) {
  try {
    if (spec_ == nullptr || !fits(*result, *spec_)) spec_ = spec_of(*result);
  } catch (const Error&) {
    return std::current_exception();
  }
  if (!out.settle(spec_)) {
    return std::make_exception_ptr(Error(Code::kInvalidArgument, name_,
                                         "results must be alike: one is " + spec_->to_string() +
                                             ", another " + out.spec()->to_string()));
  }
  uint64_t bytes = 0;
  for (size_t i = 0; i < result->size(); ++i) {
    const auto& [name, tensor] = (*result)[i];
    if (!tensor.is_contiguous()) result->set(name, tensor.copy());
    const Tensor& given = (*result)[i].second;
    out.view(i, row, given.data(), given.shape());
    bytes += given.nbytes();
  }
  out.keep(std::move(result), bytes);
  return nullptr;
}

void ExampleRows::give_whole(std::shared_ptr<Example> result, Chunk& out, uint32_t row) {
  static const SpecRef whole =
      std::make_shared<ElementSpec>(std::vector<Leaf>{{"", LeafKind::kObject, DType::kUint8, {}}});
  (void)out.settle(whole);
  out.view(0, row, reinterpret_cast<const std::byte*>(result.get()));
  out.keep(std::move(result));
}

bool fits(const Example& element, const ElementSpec& spec) {
  if (element.size() != spec.leaves().size()) return false;
  for (size_t i = 0; i < element.size(); ++i) {
    const auto& [name, tensor] = element[i];
    const Leaf& leaf = spec.leaves()[i];
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

SpecRef ExampleRows::spec_of(const Example& result) const {
  if (result.empty()) throw Error(Code::kInvalidArgument, name_, "the result is empty");
  std::vector<Leaf> leaves;
  bool same = like_ != nullptr && result.size() == like_->leaves().size();
  for (const auto& [name, tensor] : result) {
    if (!tensor.defined()) {
      throw Error(Code::kInvalidArgument, name_, "'" + name + "' of the result has no data");
    }
    Leaf leaf{name, LeafKind::kDense, tensor.dtype(), tensor.shape()};
    same = same && like_->leaves()[leaves.size()].name == name;
    if (like_ != nullptr) {
      if (auto was = like_->find(name)) stay_variable(like_->leaves()[*was], leaf);
    }
    leaves.push_back(std::move(leaf));
  }
  return std::make_shared<ElementSpec>(std::move(leaves), same ? like_->nest() : std::string());
}

}  // namespace penstock
