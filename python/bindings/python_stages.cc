#include "python_stages.h"

#include <nanobind/nanobind.h>

#include <utility>

#include "elements.h"
#include "gil.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/api/dataset.h"
#include "python_op.h"
#include "references.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

class Step : public Scanner::Run {
 public:
  Step(UserObjectRef function, std::string stage, Context& context)
      : function_(std::move(function)), stage_(std::move(stage)), context_(context) {}

  void step(const Keys& keys, const Chunk& carry, const Chunk& in, uint32_t from, Chunk& next,
            Chunk& out, uint32_t row) override {
    WithGil locked;
    release_references();
    auto failure = call_for_row(context_, keys, 0, row, [&] {
      next.reset(nullptr, 1);
      Owned carried, element;
      {
        nb::object before = element_object(carry, 0, nullptr, false);
        nb::object given = element_object(in, from, nullptr, false);
        StayWhenEnded stay;
        Owned pair(PyObject_CallFunctionObjArgs(function_->take().get(), before.ptr(), given.ptr(),
                                                nullptr));
        stay.returned();
        if (!pair) throw Raised::take();
        if (!PyTuple_Check(pair.get()) || PyTuple_GET_SIZE(pair.get()) != 2) {
          throw Error(Code::kInvalidArgument, stage_,
                      std::string("the function returned a ") + Py_TYPE(pair.get())->tp_name +
                          "; it must return (carry, element)");
        }
        carried = Owned::borrow(PyTuple_GET_ITEM(pair.get(), 0));
        element = Owned::borrow(PyTuple_GET_ITEM(pair.get(), 1));
      }
      put_element(carried.get(), next, 0, context_.scratch);
      put_element(element.get(), out, row, context_.scratch);
    });
    if (failure) out.fail(row, std::move(*failure));
  }

 private:
  UserObjectRef function_;
  std::string stage_;
  Context& context_;
};

}  // namespace

std::unique_ptr<Scanner::Run> PythonScanner::bind(const std::string& stage,
                                                  Context& context) const {
  return std::make_unique<Step>(function_, stage, context);
}

Opener::Opened PythonOpener::open(const Keys& keys, const Chunk& in, uint32_t row,
                                  Context& context) const {
  WithGil locked;
  release_references();
  Opened opened;
  opened.failure = call_for_row(context, keys, 0, row, [&] {
    StayWhenEnded stay;
    Owned made(call_with_element(function_->take().get(), in, row));
    stay.returned();
    if (!made) throw Raised::take();
    nb::object native = nb::getattr(nb::handle(made.get()), "_native", nb::none());
    Dataset* dataset = nullptr;
    if (!nb::try_cast(native, dataset) || dataset == nullptr) {
      throw Error(Code::kInvalidArgument, stage_,
                  std::string("the function returned a ") + Py_TYPE(made.get())->tp_name +
                      "; it must return a penstock.Dataset");
    }
    // The plan outlives `made`, which owns the functions.
    if (!Owned(PyObject_CallMethod(made.get(), "_pin", nullptr))) throw Raised::take();
    opened.plan = dataset->node();
  });
  return opened;
}

}  // namespace penstock::python
