#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "numpy_api.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/op.h"

namespace penstock::python {

// What a Python function raised, as something that C++ can carry: any thread may hold it and let
// go of it, without the GIL.
class Raised : public std::exception {
 public:
  // Takes the exception in flight. With the GIL held.
  static Raised take();
  const char* what() const noexcept override { return text_.c_str(); }  // "ValueError: no"
  PyObject* exception() const { return static_cast<PyObject*>(exception_.get()); }
  bool trouble() const { return trouble_; }  // an error, and not Ctrl-C or sys.exit()

 private:
  std::shared_ptr<void> exception_;
  std::string text_;
  bool trouble_ = true;
};

// The Python exception for penstock's own; new reference. nullptr: another one is set. With the GIL
// held.
PyObject* exception_of(const Error& error);
// The same for whatever was thrown; never nullptr.
PyObject* exception_of(const std::exception_ptr& thrown);

// A Python function of one element. The thread that runs it is one of Python's, and takes the GIL
// once per chunk. What the function gets and may return: elements.h. A tuple becomes its arguments.
class PythonOp : public Op {
 public:
  // With the GIL held.
  PythonOp(PyObject* function, std::string title);

  std::string title() const override { return title_; }
  SpecRef result(const ElementSpec&) const override { return nullptr; }
  bool user_code() const override { return true; }
  bool python() const override { return true; }
  std::unique_ptr<OpRun> bind(SpecRef in, Context& context) const override;

  PyObject* function() const { return static_cast<PyObject*>(function_.get()); }

 private:
  std::shared_ptr<void> function_;
  std::string title_;
};

// Calls user code for rows row, row + 1, ... of `out`, one for each of `keys`, save those that are
// not `alive`: with its random numbers keyed, again after an exception if it may be, and what it
// returns (a new reference, or nullptr with an exception set) put into its row. Takes the GIL.
void call_for_rows(Context& context, const Keys& keys, uint64_t alive, Chunk& out, uint32_t row,
                   const std::function<PyObject*(uint32_t j, uint32_t row)>& call);

// From now on NumPy's and Python's global generators are put to each element's address too: in
// worker processes, which are nobody else's.
void rekey_globals_for_elements();

}  // namespace penstock::python
