#include "penstock/pipeline/stages/function_op.h"

#include <exception>
#include <utility>

#include "penstock/pipeline/element/example_rows.h"

namespace penstock {
namespace {

class FunctionRun : public OpRun {
 public:
  FunctionRun(const std::string& name, const FunctionOp::Function& function, SpecRef in,
              Context& context)
      : name_(name), function_(function), context_(context), rows_(name, std::move(in)) {}

  void run(const Keys& keys, const Chunk& in, Chunk& out, uint32_t row) override {
    for (uint32_t j = 0; j < keys.size(); ++j, ++row) {
      if ((in.alive() >> row & 1) == 0) continue;
      auto result = std::make_shared<Example>();
      Failure failure;
      failure.error = attempt(keys, j, in, row, *result, failure.unsure);
      if (failure.error == nullptr) failure.error = rows_.give(std::move(result), out, row);
      if (failure.error != nullptr) out.fail(row, std::move(failure));
    }
  }

 private:
  // An exception, or null and `result`. `poisoned`: it is not the function's own.
  std::exception_ptr attempt(const Keys& keys, uint32_t j, const Chunk& in, uint32_t row,
                             Example& result, bool& poisoned) {
    Context::Watch* watch = context_.watch;
    const uint32_t place = context_.row(row);
    if (watch != nullptr && !watch->progress(place, keys.call(j))) {
      throw Error(Code::kClosed, name_, "the ticket was taken away");
    }
    if (watch != nullptr) {
      auto error = watch->poisoned(place, keys.call(j));
      poisoned = error != nullptr;
      if (poisoned) return error;
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

  const std::string& name_;
  const FunctionOp::Function& function_;
  Context& context_;
  ExampleRows rows_;
};

}  // namespace

std::unique_ptr<OpRun> FunctionOp::bind(SpecRef in, Context& context) const {
  return std::make_unique<FunctionRun>(name_, function_, std::move(in), context);
}

}  // namespace penstock
