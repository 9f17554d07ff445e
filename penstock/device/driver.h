#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "penstock/base/error.h"

namespace penstock::device {

// The CUDA driver's entry points, found at run time: penstock needs neither CUDA's headers nor its
// libraries to be built, and runs on machines without them. Types and values are those of the
// driver's C interface, which is stable (https://docs.nvidia.com/cuda/cuda-driver-api/).

using Result = int;             // CUresult
using DeviceMemory = uint64_t;  // CUdeviceptr
struct Context;                 // CUcontext is a pointer to it
struct StreamHandle;            // CUstream
struct EventHandle;             // CUevent
using Stream = StreamHandle*;
using Event = EventHandle*;

inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kNoMemory = 2;
inline constexpr Result kNotInitialized = 3;
inline constexpr Result kDeinitialized = 4;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidDevice = 101;
inline constexpr Result kNotReady = 600;
inline constexpr Result kLaunchFailed = 719;     // the context has ended
inline constexpr Result kCaptureImplicit = 906;  // a stream that waits for the default one captures

// This stream has no handle of its own; the same value as in DLPack.
inline Stream per_thread_default_stream() { return reinterpret_cast<Stream>(uintptr_t{2}); }

// name in the library, name here, parameters
#define PENSTOCK_DRIVER_CALLS(CALL)                                                    \
  CALL(cuInit, init, (unsigned flags))                                                 \
  CALL(cuDeviceGetCount, device_count, (int* count))                                   \
  CALL(cuDeviceGet, device_get, (int* device, int ordinal))                            \
  CALL(cuDeviceGetName, device_name, (char* name, int length, int device))             \
  CALL(cuDeviceTotalMem_v2, device_bytes, (size_t * bytes, int device))                \
  CALL(cuDevicePrimaryCtxRetain, retain_primary, (Context * *context, int device))     \
  CALL(cuDevicePrimaryCtxRelease_v2, release_primary, (int device))                    \
  CALL(cuCtxPushCurrent_v2, push_context, (Context * context))                         \
  CALL(cuCtxPopCurrent_v2, pop_context, (Context * *context))                          \
  CALL(cuCtxGetCurrent, current_context, (Context * *context))                         \
  CALL(cuCtxSynchronize, synchronize_context, ())                                      \
  CALL(cuMemGetInfo_v2, memory_info, (size_t * free_bytes, size_t * total))            \
  CALL(cuMemAlloc_v2, allocate, (DeviceMemory * memory, size_t bytes))                 \
  CALL(cuMemFree_v2, free, (DeviceMemory memory))                                      \
  CALL(cuMemHostAlloc, allocate_pinned, (void** memory, size_t bytes, unsigned flags)) \
  CALL(cuMemFreeHost, free_pinned, (void* memory))                                     \
  CALL(cuMemHostRegister_v2, pin, (void* memory, size_t bytes, unsigned flags))        \
  CALL(cuMemHostUnregister, unpin, (void* memory))                                     \
  CALL(cuMemcpyHtoDAsync_v2, copy_to_device,                                           \
       (DeviceMemory to, const void* from, size_t bytes, Stream stream))               \
  CALL(cuMemcpyDtoH_v2, copy_to_host, (void* to, DeviceMemory from, size_t bytes))     \
  CALL(cuStreamCreate, create_stream, (Stream * stream, unsigned flags))               \
  CALL(cuStreamDestroy_v2, destroy_stream, (Stream stream))                            \
  CALL(cuStreamSynchronize, synchronize_stream, (Stream stream))                       \
  CALL(cuStreamWaitEvent, wait_event, (Stream stream, Event event, unsigned flags))    \
  CALL(cuStreamIsCapturing, capture_status, (Stream stream, int* status))              \
  CALL(cuThreadExchangeStreamCaptureMode, exchange_capture_mode, (int* mode))          \
  CALL(cuEventCreate, create_event, (Event * event, unsigned flags))                   \
  CALL(cuEventDestroy_v2, destroy_event, (Event event))                                \
  CALL(cuEventRecord, record_event, (Event event, Stream stream))                      \
  CALL(cuEventQuery, query_event, (Event event))                                       \
  CALL(cuEventSynchronize, synchronize_event, (Event event))                           \
  CALL(cuEventElapsedTime, elapsed_time, (float* ms, Event from, Event to))            \
  CALL(cuGetErrorName, error_name, (Result result, const char** name))                 \
  CALL(cuGetErrorString, error_text, (Result result, const char** text))

struct DeviceFacts {
  std::string name;
  size_t bytes = 0;  // of its memory
};

// The table of entry points, after cuInit. Threads: any.
class Driver {
 public:
  static constexpr const char* kLibrary = "libcuda.so.1";

  // Opens the library and starts the driver; the same object for one library as long as the process
  // lives. Errors: kNotFound (no library, an older driver that lacks an entry point, no device),
  // kInvalidArgument (this process was forked after its parent had started the driver), kSystem.
  static std::shared_ptr<const Driver> load(const std::string& library = kLibrary);

  std::vector<DeviceFacts> devices() const;

  // Throws the Error of a failed call, with the driver's own name of it; kOutOfMemory, kNotFound
  // (no such device), kSystem. `operation` names the device, such as "cuda:0".
  [[noreturn]] void fail(Result result, const std::string& operation,
                         const std::string& what) const;
  void check(Result result, const std::string& operation, const char* what) const {
    if (result != kSuccess) fail(result, operation, what);
  }
  std::string name_of(Result result) const;

#define PENSTOCK_DECLARE(symbol, name, parameters) Result(*name) parameters = nullptr;
  PENSTOCK_DRIVER_CALLS(PENSTOCK_DECLARE)
#undef PENSTOCK_DECLARE

 private:
  Driver() = default;
  static std::shared_ptr<Driver> open(const std::string& library);

  int pid_ = 0;  // of the process that started the driver
};

// While a stream captures a CUDA graph, calls that allocate, free or ask for events fail in every
// thread, and end the capture. As long as this object exists, they may be made by its thread: they
// concern streams that do not capture.
class DuringCaptures {
 public:
  explicit DuringCaptures(const Driver& driver) : driver_(driver) {
    exchanged_ = driver_.exchange_capture_mode(&mode_) == kSuccess;
  }
  ~DuringCaptures() {
    if (exchanged_) driver_.exchange_capture_mode(&mode_);
  }
  DuringCaptures(const DuringCaptures&) = delete;
  DuringCaptures& operator=(const DuringCaptures&) = delete;

 private:
  const Driver& driver_;
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED; then the thread's own
  bool exchanged_ = false;
};

}  // namespace penstock::device
