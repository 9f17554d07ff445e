#include "penstock/train/batcher.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/element/element.h"

namespace penstock::train {
namespace {

constexpr const char* kBatcher = "Batcher";

std::vector<Leaf> leaves_of(const Example& input) {
  std::vector<Leaf> leaves;
  leaves.reserve(input.size());
  for (const auto& [name, tensor] : input) {
    if (!tensor.is_contiguous()) {
      throw Error(Code::kInvalidArgument, kBatcher,
                  "'" + name + "' is not contiguous: give tensor.contiguous()");
    }
    leaves.push_back({.name = name, .dtype = tensor.dtype(), .shape = tensor.shape()});
  }
  if (leaves.empty()) throw Error(Code::kInvalidArgument, kBatcher, "the input is empty");
  return leaves;
}

}  // namespace

struct Batcher::ExampleCall final : CallQueue::Call {
  explicit ExampleCall(const Example& in) : input(in), leaves(leaves_of(in)) {}
  bool joins(const Call& oldest) const override {
    return leaves == static_cast<const ExampleCall&>(oldest).leaves;
  }

  const Example input;
  const std::vector<Leaf> leaves;
  Example result;
};

Batcher::Batcher(Function function, BatcherOptions options)
    : function_(std::move(function)), queue_(kBatcher, std::move(options)) {}

// An input unlike the first one with an answer is an error of its own call.
void Batcher::check(const std::vector<Leaf>& leaves) const {
  const std::lock_guard lock(mutex_);
  if (like_.empty() || leaves == like_) return;
  throw Error(Code::kInvalidArgument, kBatcher,
              "the input is " + ElementSpec(leaves).to_string() + ", those before are " +
                  ElementSpec(like_).to_string() +
                  ": calls share a batch, so names, shapes and dtypes must be the same");
}

Example Batcher::operator()(const Example& input, int64_t timeout_ns) {
  const auto call = std::make_shared<ExampleCall>(input);
  check(call->leaves);
  const uint64_t end = timeout_ns < 0 ? UINT64_MAX : now_ns() + static_cast<uint64_t>(timeout_ns);
  bool leads = queue_.enter(call);
  while (leads || queue_.wait(*call, end)) {
    queue_.gather(call.get());
    const CallQueue::Batch batch = queue_.take(call.get());
    if (!batch.empty()) {
      try {
        run(batch);
      } catch (...) {
        for (const auto& each : batch) each->error = std::current_exception();
      }
      queue_.finish(batch);
    }
    leads = false;
  }
  if (call->error != nullptr) std::rethrow_exception(call->error);
  return std::move(call->result);
}

void Batcher::run(const CallQueue::Batch& batch) {
  const auto input = [&](size_t row) -> const Example& {
    return static_cast<const ExampleCall&>(*batch[row]).input;
  };
  const auto& leaves = static_cast<const ExampleCall&>(*batch[0]).leaves;
  check(leaves);
  Example stacked;
  const auto count = static_cast<int64_t>(batch.size());
  for (size_t place = 0; place < input(0).size(); ++place) {
    const auto& [name, first] = input(0)[place];
    Shape shape = first.shape();
    shape.insert(shape.begin(), count);
    Tensor column = Tensor::make(first.dtype(), std::move(shape));
    const size_t bytes = first.nbytes();
    for (size_t row = 0; row < batch.size() && bytes > 0; ++row) {
      std::memcpy(column.data() + row * bytes, input(row)[place].second.data(), bytes);
    }
    stacked.set(name, std::move(column));
  }
  const Example result = function_(stacked);
  for (const auto& [name, tensor] : result) {
    if (tensor.ndim() > 0 && tensor.dim(0) == count) continue;
    throw Error(Code::kInvalidArgument, kBatcher,
                "the function returned '" + name + "' of shape " + to_string(tensor.shape()) +
                    " for " + std::to_string(count) + " calls: return a row for each");
  }
  for (size_t row = 0; row < batch.size(); ++row) {
    Example& own = static_cast<ExampleCall&>(*batch[row]).result;
    for (const auto& [name, tensor] : result) own.set(name, tensor.row(static_cast<int64_t>(row)));
  }
  const std::lock_guard lock(mutex_);
  if (like_.empty()) like_ = leaves;
}

}  // namespace penstock::train
