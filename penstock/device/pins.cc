#include "penstock/device/pins.h"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "penstock/memory/region.h"

namespace penstock::device {
namespace {

constexpr unsigned kPortable = 1;               // for all contexts
constexpr size_t kMinPiece = size_t{16} << 20;  // so that small batches do not pin one by one
constexpr size_t kPage = 4096;

// Constant-initialised and never destroyed.
constinit std::mutex pins_mutex;

}  // namespace

std::shared_ptr<Pins> Pins::of(const std::shared_ptr<Region>& region, size_t end,
                               const std::shared_ptr<const Driver>& driver, int handle) {
  if (region->kind() != Region::Kind::kShared || region->inherited()) return nullptr;
  std::lock_guard lock(pins_mutex);
  auto pins = std::static_pointer_cast<Pins>(attached_to(*region));
  if (pins == nullptr) {
    pins = std::shared_ptr<Pins>(new Pins(driver, handle));
    attach(*region, pins);
  }
  pins->grow(*region, end);
  return pins->ends_.empty() ? nullptr : pins;
}

Pins::Pins(std::shared_ptr<const Driver> driver, int handle)
    : driver_(std::move(driver)), handle_(handle), pid_(getpid()) {
  driver_->check(driver_->retain_primary(&context_, handle_), "device", "no context");
}

Pins::~Pins() {
  if (pid_ != getpid()) return;
  const DuringCaptures allowed(*driver_);
  if (driver_->push_context(context_) == kSuccess) {
    size_t begin = 0;
    for (size_t end : ends_) {
      driver_->unpin(base_ + begin);
      begin = end;
    }
    Context* popped = nullptr;
    driver_->pop_context(&popped);
  }
  driver_->release_primary(handle_);
}

void Pins::grow(Region& region, size_t wanted) {
  base_ = region.base();
  const size_t begin = ends_.empty() ? 0 : ends_.back(), committed = region.committed();
  if (wanted <= begin || committed <= refused_) return;
  const size_t piece = std::max({(wanted + kPage - 1) / kPage * kPage - begin, begin, kMinPiece});
  const size_t end = std::min(begin + piece, committed);
  if (!keep_pages(region, end) || driver_->pin(base_ + begin, end - begin, kPortable) != kSuccess) {
    refused_ = committed;
    return;
  }
  ends_.push_back(end);
}

size_t Pins::from(size_t offset) const {
  std::lock_guard lock(pins_mutex);
  const auto end = std::upper_bound(ends_.begin(), ends_.end(), offset);
  return end == ends_.end() ? 0 : *end - offset;
}

size_t Pins::bytes() const {
  std::lock_guard lock(pins_mutex);
  return ends_.empty() ? 0 : ends_.back();
}

}  // namespace penstock::device
