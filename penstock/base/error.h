#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace penstock {

// What kind of thing went wrong. Python maps each to an exception class of the same name.
enum class Code {
  kInvalidArgument,  // the caller asked for something that cannot be; nothing was changed
  kOutOfMemory,      // no memory, shared memory or address space for it
  kDataLoss,         // bytes on disk or in transit are not what they should be
  kNotFound,         // a file or name that is not there
  kClosed,           // the object was closed, perhaps by another thread
  kTimeout,          // a ticket took longer than it was given
  kWorkerLost,       // a worker died, and again, and again
  kSystem,           // the operating system refused; the text has its errno
  kInternal,         // a broken invariant of penstock itself
};

// "InvalidArgument", "OutOfMemory", ...
std::string_view name_of(Code code);

// The one exception of the public surface. what() is "<operation>: <text>"; `text` names the place
// (file, offset, index) and the remedy. It is UTF-8, whatever a file's name, or what is quoted of a
// file, is.
class Error : public std::runtime_error {
 public:
  Error(Code code, std::string operation, std::string text);

  // An Error of kind kSystem (kOutOfMemory for ENOMEM) that spells out `error_number`.
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
