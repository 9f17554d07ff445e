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

// Calls user C++ code that makes elements, with retries and supervision. A result becomes a row; an
// exception becomes the row's failure. One thread.
class UserCalls {
 public:
  // `name`: of the user's function, for errors. `like`: see ExampleRows. The context must outlive
  // this.
  UserCalls(std::string name, Context& context, SpecRef like = nullptr)
      : name_(std::move(name)), context_(context), rows_(name_, std::move(like)) {}

  // Makes row `row` of `out` with call(SampleContext&) -> Example. Its random numbers are keyed by
  // keys' j-th element.
  template <class Call>
  void make(const Keys& keys, uint32_t j, Chunk& out, uint32_t row, Call call) {
    auto result = std::make_shared<Example>();
    Failure failure;
    failure.error = attempt(keys, j, row, *result, failure.provisional, call);
    if (failure.error == nullptr) failure.error = rows_.give(std::move(result), out, row);
    if (failure.error != nullptr) out.fail(row, std::move(failure));
  }
  // Like make(), but the row is the Example itself (LeafKind::kObject).
  template <class Call>
  void make_whole(const Keys& keys, uint32_t j, Chunk& out, uint32_t row, Call call) {
    auto result = std::make_shared<Example>();
    Failure failure;
    failure.error = attempt(keys, j, row, *result, failure.provisional, call);
    if (failure.error != nullptr) return out.fail(row, std::move(failure));
    ExampleRows::give_whole(std::move(result), out, row);
  }

 private:
  // Returns an exception, or null and sets `result`. `provisional`: the exception does not come
  // from this call; an earlier attempt timed out or killed its worker.
  template <class Call>
  std::exception_ptr attempt(const Keys& keys, uint32_t j, uint32_t row, Example& result,
                             bool& provisional, Call& call) {
    Context::Watch* watch = context_.watch;
    const uint32_t place = context_.row(row);
    if (watch != nullptr && !watch->progress(place, keys.call(j))) {
      throw Error(Code::kClosed, name_, "the ticket was taken away");
    }
    if (watch != nullptr) {
      auto error = watch->poisoned(place, keys.call(j));
      provisional = error != nullptr;
      if (provisional) return error;
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
      if (watch != nullptr) watch->on_exception(again);
      if (!again) return error;
    }
  }

  std::string name_;
  Context& context_;
  ExampleRows rows_;
};

}  // namespace penstock
