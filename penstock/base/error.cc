#include "penstock/base/error.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "penstock/base/text.h"

namespace penstock {

std::string_view name_of(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
      return "InvalidArgument";
    case Code::kOutOfMemory:
      return "OutOfMemory";
    case Code::kDataLoss:
      return "DataLoss";
    case Code::kNotFound:
      return "NotFound";
    case Code::kClosed:
      return "Closed";
    case Code::kTimeout:
      return "Timeout";
    case Code::kWorkerLost:
      return "WorkerLost";
    case Code::kSystem:
      return "System";
    case Code::kInternal:
      return "Internal";
  }
  return "Unknown";
}

Error::Error(Code code, std::string operation, std::string text)
    : std::runtime_error(escape_invalid_utf8(operation + ": " + without_secrets(text))),
      code_(code),
      operation_(escape_invalid_utf8(operation)) {}

Error Error::from_errno(int error_number, std::string operation, std::string text) {
  Code code = error_number == ENOMEM ? Code::kOutOfMemory : Code::kSystem;
  Error error(code, std::move(operation), text + ": " + std::strerror(error_number));
  error.error_number_ = error_number;
  return error;
}

}  // namespace penstock
