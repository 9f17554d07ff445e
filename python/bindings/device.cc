// Staging on a CUDA device: batches as objects of the DLPack protocol.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <array>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gil.h"
#include "leaf_value.h"
#include "loader_statistics.h"
#include "module.h"
#include "numpy_api.h"
#include "penstock/base/error.h"
#include "penstock/device/link_speed.h"
#include "penstock/device/read_back.h"
#include "penstock/device/stage.h"
#include "penstock/memory/dlpack.h"
#include "references.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

using device::Driver;
using device::Stage;
using device::StageFigures;

// A consumer that takes the struct renames the capsule.
constexpr const char* kOld = "dltensor";
constexpr const char* kVersioned = "dltensor_versioned";

template <typename Managed>
nb::object in_capsule(Managed* managed, const char* name) {
  PyObject* capsule = PyCapsule_New(managed, name, [](PyObject* self) {
    for (const char* unused : {kOld, kVersioned}) {
      if (!PyCapsule_IsValid(self, unused)) continue;
      auto* left = static_cast<Managed*>(PyCapsule_GetPointer(self, unused));
      left->deleter(left);
    }
  });
  if (capsule == nullptr) {
    managed->deleter(managed);
    throw nb::python_error();
  }
  return nb::steal(capsule);
}

// An array of a batch on the device, or on its way to it.
class StagedArray {
 public:
  StagedArray(std::shared_ptr<Stage::Batch> batch, size_t place)
      : batch_(std::move(batch)), place_(place) {}

  nb::tuple shape() const {
    nb::list lengths;
    for (int64_t length : tensor().shape()) lengths.append(length);
    return nb::tuple(lengths);
  }
  std::string dtype() const { return std::string(name_of(tensor().dtype())); }
  size_t nbytes() const { return tensor().nbytes(); }

  nb::tuple dlpack_device() const {
    const dlpack::Device device = batch_->device();
    return nb::make_tuple(device.device_type, device.device_id);
  }
  nb::object dlpack(nb::object stream, nb::object max_version, nb::object dl_device,
                    nb::object copy) const {
    if (!dl_device.is_none() && !dl_device.equal(dlpack_device())) {
      throw nb::buffer_error("a staged array can be taken on its own device only");
    }
    if (copy.ptr() == Py_True)
      throw nb::buffer_error("a staged array is not copied: use copy=None");
    const int64_t number = stream.is_none() ? 1 : nb::cast<int64_t>(stream);
    const Tensor taken = Stage::Batch::take(batch_, place_, number);
    const bool versioned =
        !max_version.is_none() && nb::cast<int64_t>(max_version[0]) >= dlpack::kMajorVersion;
    return versioned ? in_capsule(to_dlpack_versioned(taken, batch_->device()), kVersioned)
                     : in_capsule(penstock::to_dlpack(taken, batch_->device()), kOld);
  }

 private:
  const Tensor& tensor() const { return (*batch_)[place_]; }

  const std::shared_ptr<Stage::Batch> batch_;
  const size_t place_;
};

// The arrays of a batch on the device, or on its way to it.
class StagedBatch {
 public:
  explicit StagedBatch(std::shared_ptr<Stage::Batch> batch) : batch_(std::move(batch)) {}

  size_t size() const { return batch_->size(); }
  int device() const { return batch_->device().device_id; }
  StagedArray at(size_t place) const {
    if (place >= size()) throw nb::index_error();
    return {batch_, place};
  }
  // DLPack's capsules of all arrays, for a stream by DLPack's number.
  nb::list take(int64_t stream) const {
    nb::list capsules;
    for (const Tensor& taken : Stage::Batch::take(batch_, stream)) {
      capsules.append(in_capsule(penstock::to_dlpack(taken, batch_->device()), kOld));
    }
    return capsules;
  }

 private:
  const std::shared_ptr<Stage::Batch> batch_;
};

// A Stage whose calls may come from any thread.
class DeviceStage {
 public:
  DeviceStage(int device, const std::string& library) : stage_(Stage::open(device, library)) {}

  StagedBatch put(nb::list arrays) {
    std::vector<Tensor> tensors;
    tensors.reserve(arrays.size());
    for (nb::handle each : arrays) tensors.push_back(tensor_of(each.ptr()));
    std::shared_ptr<Stage::Batch> batch;
    {
      WithoutGil unlocked;
      std::lock_guard lock(mutex_);
      batch = stage_->put(std::move(tensors));
    }
    return StagedBatch(std::move(batch));
  }
  void reap(bool wait) {
    WithoutGil unlocked;
    std::lock_guard lock(mutex_);
    stage_->reap(wait);
  }
  void close() {
    WithoutGil unlocked;
    std::lock_guard lock(mutex_);
    stage_->close();
  }
  nb::tuple traces() {
    Stage::Traces traces;
    {
      WithoutGil unlocked;
      std::lock_guard lock(mutex_);
      traces = stage_->traces();
    }
    return nb::make_tuple(list_of(traces.copies), list_of(traces.steps));
  }
  int device() const { return stage_->device(); }
  nb::dict figures() const {
    const StageFigures now = stage_->figures();
    nb::dict all;
    all["batches"] = now.batches;
    all["bytes"] = now.bytes;
    all["copies"] = now.copies;
    all["gathered_bytes"] = now.gathered_bytes;
    all["device_waits"] = now.device_waits;
    all["host_waits"] = now.host_waits;
    all["host_wait_ns"] = now.host_wait_ns;
    all["late"] = now.late;
    all["events"] = now.events;
    all["synchronised"] = now.synchronised;
    all["slots"] = now.slots;
    all["slot_bytes"] = now.slot_bytes;
    all["pinned_bytes"] = now.pinned_bytes;
    all["pageable"] = now.pageable;
    return all;
  }

 private:
  static nb::list list_of(const std::vector<TraceEvent>& trace) {
    nb::list events;
    for (const TraceEvent& event : trace) events.append(tuple_of(event));
    return events;
  }
  static Tensor tensor_of(PyObject* object) {
    LeafValue leaf;
    std::string why;
    if (!leaf.take(object, why)) throw Error(Code::kInvalidArgument, "device", "an array " + why);
    if (leaf.kind != LeafKind::kDense || leaf.array == nullptr) {
      throw Error(Code::kInvalidArgument, "device", "give arrays of numbers");
    }
    PyArrayObject* array = leaf.array;
    const auto axes = static_cast<size_t>(PyArray_NDIM(array));
    Shape shape(PyArray_DIMS(array), PyArray_DIMS(array) + axes);
    Shape strides(PyArray_STRIDES(array), PyArray_STRIDES(array) + axes);
    return Tensor::view(leaf.dtype, std::move(shape), PyArray_DATA(array),
                        share(reinterpret_cast<PyObject*>(array)), std::move(strides), true);
  }

  std::mutex mutex_;
  const std::shared_ptr<Stage> stage_;
};

nb::list cuda_devices(const std::string& library) {
  nb::list all;
  for (const device::DeviceFacts& facts : Driver::load(library)->devices()) {
    all.append(nb::make_tuple(facts.name, facts.bytes));
  }
  return all;
}

// Bytes per second out of pinned memory and out of other memory.
nb::tuple cuda_link_speed(int number, size_t bytes, const std::string& library) {
  device::LinkSpeed speed;
  {
    WithoutGil unlocked;
    speed = device::link_speed(number, bytes, library);
  }
  return nb::make_tuple(speed.pinned, speed.pageable);
}

// Copies memory of a CUDA device into a writable, contiguous array.
void read_device_memory(int number, uint64_t from, nb::handle into, const std::string& library) {
  Py_buffer view{};
  if (PyObject_GetBuffer(into.ptr(), &view, PyBUF_WRITABLE) != 0) throw nb::python_error();
  const std::shared_ptr<Py_buffer> held(&view, PyBuffer_Release);
  const std::span to(static_cast<std::byte*>(view.buf), static_cast<size_t>(view.len));
  WithoutGil unlocked;
  device::read_back(number, from, to, library);
}

}  // namespace

void bind_device(nb::module_& m) {
  nb::class_<StagedArray>(m, "StagedArray")
      .def("__dlpack__", &StagedArray::dlpack, nb::kw_only(), nb::arg("stream") = nb::none(),
           nb::arg("max_version") = nb::none(), nb::arg("dl_device") = nb::none(),
           nb::arg("copy") = nb::none())
      .def("__dlpack_device__", &StagedArray::dlpack_device)
      .def_prop_ro("shape", &StagedArray::shape)
      .def_prop_ro("dtype", &StagedArray::dtype)
      .def_prop_ro("nbytes", &StagedArray::nbytes);
  nb::class_<StagedBatch>(m, "StagedBatch")
      .def("__len__", &StagedBatch::size)
      .def("__getitem__", &StagedBatch::at, nb::arg("place"))
      .def("take", &StagedBatch::take, nb::arg("stream"))
      .def_prop_ro("device", &StagedBatch::device);
  nb::class_<DeviceStage>(m, "DeviceStage")
      .def(nb::init<int, std::string>(), nb::arg("device"), nb::arg("library"))
      .def("put", &DeviceStage::put, nb::arg("arrays"))
      .def("reap", &DeviceStage::reap, nb::arg("wait") = false)
      .def("close", &DeviceStage::close)
      .def("figures", &DeviceStage::figures)
      .def("traces", &DeviceStage::traces)
      .def_prop_ro("device", &DeviceStage::device);
  m.def("cuda_devices", &cuda_devices, nb::arg("library"));
  m.def("cuda_link_speed", &cuda_link_speed, nb::arg("device"), nb::arg("bytes"),
        nb::arg("library"));
  m.def("read_device_memory", &read_device_memory, nb::arg("device"), nb::arg("address"),
        nb::arg("into"), nb::arg("library"));
  m.attr("CUDA_LIBRARY") = Driver::kLibrary;
}

}  // namespace penstock::python
