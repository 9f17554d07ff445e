#include "penstock/device/driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <map>
#include <mutex>

namespace penstock::device {
namespace {

constexpr const char* kForkRemedy =
    "the CUDA driver does not work in a process that was forked after its parent had used it; "
    "start "
    "workers with start_method=\"spawn\", and make what uses the device in the process that was "
    "started last";

std::string text_of_dlerror() {
  const char* text = dlerror();
  return text == nullptr ? "unknown reason" : text;
}

}  // namespace

std::shared_ptr<const Driver> Driver::load(const std::string& library) {
  // Never destroyed: batches may end after static objects.
  static auto& mutex = *new std::mutex;
  static auto& loaded = *new std::map<std::string, std::shared_ptr<Driver>>;
  std::lock_guard lock(mutex);
  std::shared_ptr<Driver>& driver = loaded[library];
  if (driver == nullptr) {
    std::shared_ptr<Driver> opened = open(library);
    driver = std::move(opened);
  }
  if (driver->pid_ != getpid()) throw Error(Code::kInvalidArgument, "device", kForkRemedy);
  return driver;
}

std::shared_ptr<Driver> Driver::open(const std::string& library) {
  // Never closed: the driver has threads of its own.
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw Error(Code::kNotFound, "device",
                "no CUDA driver: " + text_of_dlerror() +
                    "; install NVIDIA's driver, or use device=\"cpu\"");
  }
  std::shared_ptr<Driver> driver(new Driver);
  auto find = [&](const char* symbol, auto& entry) {
    void* found = dlsym(handle, symbol);
    if (found == nullptr) {
      throw Error(
          Code::kNotFound, "device",
          library + " has no " + symbol + ": the CUDA driver is older than 11.0; update it");
    }
    entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(found);
  };
#define PENSTOCK_FIND(symbol, name, parameters) find(#symbol, driver->name);
  PENSTOCK_DRIVER_CALLS(PENSTOCK_FIND)
#undef PENSTOCK_FIND
  Result started = driver->init(0);
  if (started == kNotInitialized) throw Error(Code::kInvalidArgument, "device", kForkRemedy);
  driver->check(started, "device", "the CUDA driver does not start");
  driver->pid_ = getpid();
  return driver;
}

std::vector<DeviceFacts> Driver::devices() const {
  int count = 0;
  check(device_count(&count), "device", "cannot count devices");
  std::vector<DeviceFacts> all;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    int device = 0;
    std::array<char, 256> name{};
    DeviceFacts facts;
    const std::string operation = "cuda:" + std::to_string(ordinal);
    check(device_get(&device, ordinal), operation, "no such device");
    check(device_name(name.data(), static_cast<int>(name.size() - 1), device), operation,
          "its name");
    check(device_bytes(&facts.bytes, device), operation, "its memory");
    facts.name = name.data();
    all.push_back(std::move(facts));
  }
  return all;
}

std::string Driver::name_of(Result result) const {
  const char* name = nullptr;
  if (error_name(result, &name) != kSuccess || name == nullptr) {
    return "CUDA error " + std::to_string(result);
  }
  return name;
}

void Driver::fail(Result result, const std::string& operation, const std::string& what) const {
  const char* text = nullptr;
  std::string message = what + ": " + name_of(result);
  if (error_text(result, &text) == kSuccess && text != nullptr) {
    message += std::string(" (") + text + ")";
  }
  Code code = result == kNoMemory                               ? Code::kOutOfMemory
              : result == kNoDevice || result == kInvalidDevice ? Code::kNotFound
                                                                : Code::kSystem;
  throw Error(code, operation, message);
}

}  // namespace penstock::device
