#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/element/chunk.h"
#include "penstock/pipeline/element/example_rows.h"
#include "penstock/pipeline/stages/context.h"

namespace penstock {

// Calls of the user's C++ code that make elements: retried, and watched over. What a call returns
// becomes a row; what it throws is the row's failure. One thread.
class UserCalls {
 public:
  // `name`: of what is called, in errors. `like`: see ExampleRows. The context outlives this.
  UserCalls(std::string name, Context& context, SpecRef like = nullptr)
      : name_(std::move(name)), context_(context), rows_(name_, std::move(like)) {}

  // Row `row` of `out`, whose address is keys' j-th: call(SampleContext&) -> Example.
  template <class Call>
  void make(const Keys& keys, uint32_t j, Chunk& out, uint32_t row, Call call) {
    auto result = std::make_shared<Example>();
    Failure failure;
    failure.error = attempt(keys, j, row, *result, failure.unsure, call);
    if (failure.error == nullptr) failure.error = rows_.give(std::move(result), out, row);
    if (failure.error != nullptr) out.fail(row, std::move(failure));
  }
  // The same; the row is the Example itself (LeafKind::kObject).
  template <class Call>
  void make_whole(const Keys& keys, uint32_t j, Chunk& out, uint32_t row, Call call) {
    auto result = std::make_shared<Example>();
    Failure failure;
    failure.error = attempt(keys, j, row, *result, failure.unsure, call);
    if (failure.error != nullptr) return out.fail(row, std::move(failure));
    ExampleRows::give_whole(std::move(result), out, row);
  }

 private:
  // An exception, or null and `result`. `unsure`: the exception is not the call's own, for its
  // worker timed out in it before.
  template <class Call>
  std::exception_ptr attempt(const Keys& keys, uint32_t j, uint32_t row, Example& result,
                             bool& unsure, Call& call) {
    Context::Watch* watch = context_.watch;
    const uint32_t place = context_.row(row);
    if (watch != nullptr && !watch->progress(place, keys.call(j))) {
      throw Error(Code::kClosed, name_, "the ticket was taken away");
    }
    if (watch != nullptr) {
      auto error = watch->poisoned(place, keys.call(j));
      unsure = error != nullptr;
      if (unsure) return error;
    }
    for (uint32_t n = 0;; ++n) {
      std::exception_ptr error;
      try {
        SampleContext sample = keys.sample(j);
        result = call(sample);
        return nullptr;
      } catch (...) {
        error = std::current_exception();
      }
      const bool again = n < context_.retries;
      if (watch != nullptr) watch->threw(again);
      if (!again) return error;
    }
  }

  std::string name_;
  Context& context_;
  ExampleRows rows_;
};

}  // namespace penstock
