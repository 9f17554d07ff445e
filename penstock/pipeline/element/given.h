#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/text.h"

// Checks of user arguments at the time of the call.
namespace penstock {

// For a pointer or a function. Error kInvalidArgument: it is null.
template <class T>
T given(T thing, const char* operation, const char* what) {
  if (thing) return thing;
  throw Error(Code::kInvalidArgument, operation, std::string("the ") + what + " is null");
}

// For names that states (JSON) contain. Error kInvalidArgument: the name is not UTF-8.
inline std::string utf8_name(std::string name, const char* operation) {
  if (is_utf8(std::as_bytes(std::span(name)))) return name;
  throw Error(Code::kInvalidArgument, operation,
              "the name '" + escape_invalid_utf8(name) + "' is not UTF-8");
}

// Error kInvalidArgument: n is 0, or above 2^32 - 1.
inline void check_batch_size(uint64_t n, const char* operation) {
  if (n > 0 && n <= UINT32_MAX) return;
  throw Error(Code::kInvalidArgument, operation,
              "batch_size is " + std::to_string(n) + "; give 1 to 4294967295");
}

}  // namespace penstock
