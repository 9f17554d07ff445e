#pragma once

#include <gtest/gtest.h>

#include <string>

#include "penstock/base/error.h"

namespace penstock::train::testing {

// The text of the error that `call` throws, which must have this code.
template <typename Call>
std::string message_of(Code code, Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

}  // namespace penstock::train::testing
