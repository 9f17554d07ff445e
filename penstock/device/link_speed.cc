#include "penstock/device/link_speed.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "penstock/base/clock.h"

namespace penstock::device {
namespace {

constexpr int kCopies = 5;

// A device's primary context, a stream and memory there, as long as it exists.
class Link {
 public:
  Link(int device, size_t bytes, const std::string& library)
      : driver_(Driver::load(library)), name_("cuda:" + std::to_string(device)), bytes_(bytes) {
    driver_->check(driver_->device_get(&handle_, device), name_, "no such device");
    driver_->check(driver_->retain_primary(&context_, handle_), name_, "no context");
    Result result = driver_->push_context(context_);
    pushed_ = result == kSuccess;
    if (result == kSuccess) result = driver_->create_stream(&stream_, 1);
    if (result == kSuccess) result = driver_->allocate(&memory_, bytes);
    if (result == kSuccess) return;
    end();
    driver_->fail(result, name_, "cannot prepare a copy of " + std::to_string(bytes) + " bytes");
  }
  ~Link() { end(); }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Pinned memory; null: there is none.
  std::shared_ptr<void> pinned() const {
    void* memory = nullptr;
    if (driver_->allocate_pinned(&memory, bytes_, 0) != kSuccess) return nullptr;
    return {memory, [this](void* used) { driver_->free_pinned(used); }};
  }
  double speed_from(const void* memory) const {
    uint64_t best = UINT64_MAX;
    for (int copy = 0; copy < kCopies; ++copy) {
      const uint64_t began = now_ns();
      driver_->check(driver_->copy_to_device(memory_, memory, bytes_, stream_), name_,
                     "a copy to the device");
      driver_->check(driver_->synchronize_stream(stream_), name_, "waiting for a copy");
      best = std::min(best, std::max<uint64_t>(now_ns() - began, 1));
    }
    return 1e9 * static_cast<double>(bytes_) / static_cast<double>(best);
  }

 private:
  void end() noexcept {
    if (memory_ != 0) driver_->free(memory_);
    if (stream_ != nullptr) driver_->destroy_stream(stream_);
    Context* popped = nullptr;
    if (pushed_) driver_->pop_context(&popped);
    driver_->release_primary(handle_);
  }

  const std::shared_ptr<const Driver> driver_;
  const std::string name_;
  const size_t bytes_;
  int handle_ = 0;
  bool pushed_ = false;
  Context* context_ = nullptr;
  Stream stream_ = nullptr;
  DeviceMemory memory_ = 0;
};

}  // namespace

LinkSpeed link_speed(int device, size_t bytes, const std::string& library) {
  const Link link(device, bytes, library);
  LinkSpeed speed;
  if (const std::shared_ptr<void> memory = link.pinned()) {
    speed.pinned = link.speed_from(memory.get());
  }
  const std::vector<std::byte> memory(bytes);
  speed.pageable = link.speed_from(memory.data());
  return speed;
}

}  // namespace penstock::device
