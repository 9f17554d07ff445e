#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "numpy_api.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/stages/op.h"
#include "user_object.h"

namespace penstock::python {

// An exception of a Python function as a C++ exception: any thread may hold and release it, without
// the GIL.
class Raised : public std::exception {
 public:
  // Takes the current Python exception; or the exception that was raised while its text was made,
  // such as Ctrl-C, which has precedence. With the GIL held.
  static Raised take();
  // An exception of another process, with its text there. With the GIL held.
  static Raised from(PyObject* exception, std::string text, bool is_error);
  const char* what() const noexcept override { return text_.c_str(); }  // "ValueError: no"
  PyObject* exception() const { return static_cast<PyObject*>(exception_.get()); }
  bool is_error() const { return is_error_; }  // an error, and not Ctrl-C or sys.exit()

 private:
  std::shared_ptr<void> exception_;
  std::string text_;
  bool is_error_ = true;
};

// "ValueError: no". Python checks signals while it makes an object's text: KeyboardInterrupt may be
// set afterwards. With the GIL held.
std::string text_of_exception(PyObject* exception);

// Whether the current exception is an error, which a policy may skip: not Ctrl-C or sys.exit().
bool raised_error();
// Clears the current exception if it is an error, but not KeyboardInterrupt, which would be lost.
void clear_error();

// The Python exception for a penstock::Error; new reference. nullptr: another exception is set.
// With the GIL held.
PyObject* exception_of(const Error& error);
// The same for any C++ exception; never nullptr.
PyObject* exception_of(const std::exception_ptr& thrown);

// A Python function of one element. Runs on a Python thread, which takes the GIL once per chunk.
// elements.h describes the function's argument and result. A tuple becomes its arguments.
class PythonOp : public Op {
 public:
  PythonOp(UserObjectRef function, std::string title)
      : function_(std::move(function)), title_(std::move(title)) {}

  std::string title() const override { return title_; }
  SpecRef result(const ElementSpec&) const override { return nullptr; }
  bool user_code() const override { return true; }
  bool python() const override { return true; }
  std::unique_ptr<OpRun> bind(SpecRef in, Context& context) const override;

  const UserObject& function() const { return *function_; }

 private:
  UserObjectRef function_;
  std::string title_;
};

// Calls a function with the element in a row as map does: a tuple becomes its arguments. A new
// reference, or nullptr with an exception set.
PyObject* call_with_element(PyObject* function, const Chunk& in, uint32_t row);

// Calls user code for the j-th of `keys`, row `row` of a chunk: with its random numbers keyed, and
// with retries after an exception if allowed. Returns the exception of `call` (Raised,
// nanobind::python_error, Error kInvalidArgument or kDataLoss) as a failure without a stage. With
// the GIL held.
std::optional<Failure> call_for_row(Context& context, const Keys& keys, uint32_t j, uint32_t row,
                                    const std::function<void()>& call);

// The same for rows row, row + 1, ... of `out`, one for each of `keys`, except rows that are not
// `alive`. The result of `call` (a new reference, or nullptr with an exception set) is put into the
// row. Takes the GIL.
void call_for_rows(Context& context, const Keys& keys, uint64_t alive, Chunk& out, uint32_t row,
                   const std::function<PyObject*(uint32_t j, uint32_t row)>& call);

// From now on NumPy's and Python's global generators are also set to each element's key. For worker
// processes only, because it changes state of the whole process.
void rekey_globals_for_elements();

}  // namespace penstock::python
