#define PENSTOCK_IMPORTS_NUMPY
#include "module.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "dataset.h"
#include "elements.h"
#include "epoch_iterator.h"
#include "numpy_api.h"
#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "python_loader.h"
#include "python_op.h"
#include "random.h"
#include "train.h"

namespace nb = nanobind;

namespace {

// penstock::Error becomes the class of the same name in penstock.errors.
void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const penstock::Error& error) {
    nb::object made = nb::steal(penstock::python::exception_of(error));
    if (made.is_valid())
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
  }
}

}  // namespace

NB_MODULE(_engine, m) {
  m.doc() = "The engine of penstock. Internal: use the package penstock.";
  if (_import_array() < 0) throw nb::python_error();
  // A thread that was abandoned in user code keeps its loader until the end of the process.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(translate);
  penstock::bind_digest(m);
  penstock::bind_os(m);
  penstock::bind_random(m);
  penstock::python::bind_python_loader(m);
  penstock::python::bind_epoch_iterator(m);
  penstock::python::bind_dataset(m);
  penstock::python::bind_file_writer(m);
  penstock::python::bind_image_operations(m);
  penstock::python::bind_image_numbers(m);
  penstock::python::bind_elements(m);
  penstock::python::bind_feeds(m);
  penstock::python::bind_serve(m);
  penstock::python::bind_remote(m);
  penstock::python::bind_permutation(m);
  penstock::python::bind_remote_files(m);
  penstock::python::bind_survey(m);
  penstock::python::bind_tar(m);
  penstock::python::bind_tfrecord(m);
  penstock::python::bind_train_slab(m);
  penstock::python::bind_train_updater(m);
  penstock::python::bind_train_hogwild(m);
  penstock::python::bind_train_towers(m);
  penstock::python::bind_train_batch(m);
  penstock::python::bind_train_files(m);
  penstock::python::bind_train_publish(m);
  penstock::python::bind_train_relay(m);
  penstock::python::bind_train_server(m);
  penstock::python::bind_train_hosted(m);
  penstock::python::bind_train_channel(m);
  penstock::python::bind_train_batcher(m);
  penstock::python::bind_online(m);
  penstock::python::bind_mqtt(m);
  penstock::python::bind_device(m);
  m.def("usable_cores", &penstock::os::usable_cores);
  m.def("memory_limit", &penstock::os::memory_limit);
  m.def("resident_bytes", &penstock::os::process_resident_bytes);
}
