#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace penstock {

// The kind of an error. Python maps each to an exception class of the same name.
enum class Code {
  kInvalidArgument,  // an invalid argument or state; nothing was changed
  kOutOfMemory,      // no memory, shared memory or address space
  kDataLoss,         // bytes on disk or in transit are corrupt or missing
  kNotFound,         // a file or name does not exist
  kClosed,           // the object was closed, perhaps by another thread
  kTimeout,          // an operation took longer than allowed
  kWorkerLost,       // workers died repeatedly
  kSystem,           // an operating system error; the text describes its errno
  kInternal,         // a broken invariant of penstock itself
};

// "InvalidArgument", "OutOfMemory", ...
std::string_view name_of(Code code);

// The exception of the public API. what() is "<operation>: <text>"; `text` names the place (file,
// offset, index) and the remedy. what() is valid UTF-8, even if it quotes other bytes, such as the
// name of a file, and has no passwords and parameters of URLs: see without_secrets().
class Error : public std::runtime_error {
 public:
  Error(Code code, std::string operation, std::string text);

  // An Error kSystem (kOutOfMemory for ENOMEM) whose text ends with the description of the errno.
  static Error from_errno(int error_number, std::string operation, std::string text);

  Code code() const { return code_; }
  const std::string& operation() const { return operation_; }
  int error_number() const { return error_number_; }  // the system's errno; 0: none

 private:
  Code code_;
  int error_number_ = 0;
  std::string operation_;
};

}  // namespace penstock
