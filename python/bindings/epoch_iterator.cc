#include "epoch_iterator.h"

#include "module.h"

namespace nb = nanobind;

namespace penstock::python {

nb::object EpochIterator::next() {
  PythonLoader& loader = engine();
  // An iterator that delivered everything may be overtaken before its last call.
  over_ = over_ || (gave_all_ && !loader.is_current(serial_));
  if (over_) throw nb::stop_iteration();
  nb::object batch;
  try {
    batch = loader.next(serial_);
  } catch (...) {
    over_ = true;
    throw;
  }
  if (batch.ptr() != end_marker()) {
    gave_all_ = loader.gave_all(epoch_);
    return batch;
  }
  over_ = true;
  if (loader.is_current(serial_)) finished_(epoch_);
  throw nb::stop_iteration();
}

int EpochIterator::traverse(visitproc visit, void* arg) const {
  Py_VISIT(loader_.ptr());
  Py_VISIT(finished_.ptr());
  return 0;
}

void EpochIterator::clear() {
  over_ = true;
  finished_.reset();
}

namespace {

int traverse_iterator(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<EpochIterator>(self)->traverse(visit, arg) : 0;
}

int clear_iterator(PyObject* self) {
  nb::inst_ptr<EpochIterator>(self)->clear();
  return 0;
}

PyType_Slot iterator_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse_iterator)},
                                {Py_tp_clear, reinterpret_cast<void*>(clear_iterator)},
                                {0, nullptr}};

}  // namespace

void bind_epoch_iterator(nb::module_& m) {
  nb::class_<EpochIterator>(m, "EpochIterator", nb::type_slots(iterator_slots))
      .def(nb::init<nb::object, uint64_t, nb::object>())
      .def(
          "__iter__", [](nb::handle self) { return self; },
          nb::sig("def __iter__(self) -> EpochIterator"))
      .def("__next__", &EpochIterator::next)
      .def("close", &EpochIterator::clear);
}

}  // namespace penstock::python
