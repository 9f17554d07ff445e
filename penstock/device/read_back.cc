#include "penstock/device/read_back.h"

#include <memory>

namespace penstock::device {

void read_back(int device, DeviceMemory from, std::span<std::byte> to, const std::string& library) {
  const std::shared_ptr<const Driver> driver = Driver::load(library);
  const std::string name = "cuda:" + std::to_string(device);
  int handle = 0;
  driver->check(driver->device_get(&handle, device), name, "no such device");
  Context* context = nullptr;
  driver->check(driver->retain_primary(&context, handle), name, "no context");
  Result result = driver->push_context(context);
  if (result == kSuccess) {
    const DuringCaptures allowed(*driver);
    if (!to.empty()) result = driver->copy_to_host(to.data(), from, to.size());
    driver->pop_context(&context);
  }
  driver->release_primary(handle);
  driver->check(result, name, "a copy from the device");
}

}  // namespace penstock::device
