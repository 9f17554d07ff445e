// The fake driver's own functions, and arrays for tests.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "penstock/device/stage.h"
#include "penstock/memory/dlpack.h"

namespace penstock::testing {

// Each case runs in a process of its own under ctest; within one process the settings are reset.
class Fake {
 public:
  Fake() {
    void* handle = dlopen(PENSTOCK_FAKE_DRIVER, RTLD_NOW);
    if (handle == nullptr) throw std::runtime_error(dlerror());
    set_ = reinterpret_cast<decltype(set_)>(dlsym(handle, "fake_set"));
    get_ = reinterpret_cast<decltype(get_)>(dlsym(handle, "fake_get"));
    launch = reinterpret_cast<decltype(launch)>(dlsym(handle, "fake_launch"));
    delay = reinterpret_cast<decltype(delay)>(dlsym(handle, "fake_delay"));
    read = reinterpret_cast<decltype(read)>(dlsym(handle, "fake_read"));
    finish = reinterpret_cast<decltype(finish)>(dlsym(handle, "fake_finish"));
    capture = reinterpret_cast<decltype(capture)>(dlsym(handle, "fake_capture"));
    reset();
  }
  ~Fake() { reset(); }

  void set(const std::string& name, long to) const { set_(name.c_str(), to); }
  long get(const std::string& name) const { return get_(name.c_str()); }

  void (*launch)(void* stream, void (*kernel)(void*), void* argument) = nullptr;
  void (*delay)(void* stream, long us) = nullptr;
  void (*read)(void* stream, void* to, const void* from, size_t bytes, long us) = nullptr;
  void (*finish)(void* stream) = nullptr;
  void (*capture)(void* stream, int on) = nullptr;

 private:
  void reset() const {
    set("fail", 0);
    for (const char* name : {"copy_us", "alloc_us", "pin_us_per_mib"}) set(name, 0);
    set("clock_ms", 0);
    set("device_memory", 1L << 32);
    set("pinned_memory", 1L << 32);
    for (const char* name :
         {"cuMemHostAlloc", "cuMemHostRegister", "cuMemcpyHtoDAsync", "cuMemcpyDtoH", "cuMemAlloc",
          "cuStreamCreate", "cuStreamIsCapturing"}) {
      set(std::string("fail ") + name, 0);
    }
  }

  void (*set_)(const char* name, long to) = nullptr;
  long (*get_)(const char* name) = nullptr;
};

// A consumer's stream.
class ConsumerStream {
 public:
  explicit ConsumerStream(const device::Driver& driver) : driver_(driver) {
    driver_.retain_primary(&context_, 0);
    driver_.push_context(context_);
    driver_.create_stream(&stream_, 1);
  }
  ~ConsumerStream() {
    driver_.destroy_stream(stream_);
    driver_.pop_context(&context_);
    driver_.release_primary(0);
  }
  device::Stream get() const { return stream_; }
  int64_t number() const { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(stream_)); }

 private:
  const device::Driver& driver_;
  device::Context* context_ = nullptr;
  device::Stream stream_ = nullptr;
};

inline Tensor filled(int64_t rows, uint8_t with) {
  Tensor tensor = Tensor::make(DType::kUint8, {rows, 64});
  std::memset(tensor.data(), with, tensor.nbytes());
  return tensor;
}

// A tensor that a consumer has, as a framework holds it.
class Taken {
 public:
  Taken(const std::shared_ptr<device::Stage::Batch>& batch, size_t place, int64_t stream)
      : managed_(to_dlpack_versioned(device::Stage::Batch::take(batch, place, stream),
                                     batch->device())) {}
  Taken(Taken&& other) noexcept : managed_(std::exchange(other.managed_, nullptr)) {}
  Taken& operator=(Taken&&) = delete;
  ~Taken() {
    if (managed_ != nullptr) managed_->deleter(managed_);
  }
  const void* data() const { return managed_->tensor.data; }
  size_t bytes() const {
    size_t all = managed_->tensor.dtype.bits / 8;
    for (int i = 0; i < managed_->tensor.ndim; ++i) {
      all *= static_cast<size_t>(managed_->tensor.shape[i]);
    }
    return all;
  }
  dlpack::Device device() const { return managed_->tensor.device; }

 private:
  dlpack::ManagedTensorVersioned* managed_;
};

inline bool all_are(const std::vector<uint8_t>& bytes, uint8_t value) {
  for (uint8_t each : bytes) {
    if (each != value) return false;
  }
  return !bytes.empty();
}

}  // namespace penstock::testing
