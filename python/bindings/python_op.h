#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "held.h"
#include "numpy_api.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/stages/op.h"

namespace penstock::python {

// What a Python function raised, as something that C++ can carry: any thread may hold it and let
// go of it, without the GIL.
class Raised : public std::exception {
 public:
  // Takes the exception in flight, or what interrupted the question for its text: that is the
  // graver one. With the GIL held.
  static Raised take();
  // One of another process, with what was said there. With the GIL held.
  static Raised from(PyObject* exception, std::string text, bool trouble);
  const char* what() const noexcept override { return text_.c_str(); }  // "ValueError: no"
  PyObject* exception() const { return static_cast<PyObject*>(exception_.get()); }
  bool trouble() const { return trouble_; }  // an error, and not Ctrl-C or sys.exit()

 private:
  std::shared_ptr<void> exception_;
  std::string text_;
  bool trouble_ = true;
};

// "ValueError: no". Python looks at signals when it is asked for an object's text: Ctrl-C may be
// set behind it. With the GIL held.
std::string text_of_exception(PyObject* exception);

// Clears the exception that is set, if it is an error: not Ctrl-C, which would be lost.
void clear_trouble();

// The Python exception for penstock's own; new reference. nullptr: another one is set. With the GIL
// held.
PyObject* exception_of(const Error& error);
// The same for whatever was thrown; never nullptr.
PyObject* exception_of(const std::exception_ptr& thrown);

// A Python function of one element. The thread that runs it is one of Python's, and takes the GIL
// once per chunk. What the function gets and may return: elements.h. A tuple becomes its arguments.
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
// again after an exception if it may be. What `call` throws (Raised, nanobind::python_error, Error
// kInvalidArgument or kDataLoss) is the failure that comes back, without a stage. With the GIL
// held.
std::optional<Failure> call_for_row(Context& context, const Keys& keys, uint32_t j, uint32_t row,
                                    const std::function<void()>& call);

// The same for rows row, row + 1, ... of `out`, one for each of `keys`, save those that are not
// `alive`; what `call` returns (a new reference, or nullptr with an exception set) is put into its
// row. Takes the GIL.
void call_for_rows(Context& context, const Keys& keys, uint64_t alive, Chunk& out, uint32_t row,
                   const std::function<PyObject*(uint32_t j, uint32_t row)>& call);

// From now on NumPy's and Python's global generators are put to each element's address too: in
// worker processes, which are nobody else's.
void rekey_globals_for_elements();

}  // namespace penstock::python
