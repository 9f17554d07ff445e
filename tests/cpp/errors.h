#pragma once

#include <gtest/gtest.h>

#include "penstock/base/error.h"

namespace penstock::testing {

// The error that `f` throws. Without one the test fails.
template <class F>
Error error_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {Code::kInternal, "", ""};
}

template <class F>
Code code_of(F f) {
  return error_of(f).code();
}

}  // namespace penstock::testing
