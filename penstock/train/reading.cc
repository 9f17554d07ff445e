#include "penstock/train/reading.h"

namespace penstock::train {

Attachment::Attachment(std::shared_ptr<const WeightsMemory> memory, uint32_t row)
    : memory_(std::move(memory)), row_(row) {
  watch_forks();
}

Attachment::~Attachment() { ignore_forks(); }

void Attachment::release(uint32_t slot) const {
  if (!inherited_.load(std::memory_order_relaxed)) memory_->release(row_, slot);
}

// A child that kept the connection would keep the row when its parent dies.
void Attachment::after_fork_in_child() noexcept {
  inherited_.store(true, std::memory_order_relaxed);
  connection_.reset();
}

Reading::Reading(std::shared_ptr<const Attachment> from, WeightsMemory::Version version) {
  try {
    hold_ = std::make_shared<Hold>(from, version);
  } catch (...) {
    from->release(version.slot);
    throw;
  }
}

Tensor Reading::at(std::string_view name) const {
  const Block& block = layout().at(name);
  float* data = hold_->from->memory().values(hold_->version.slot).data() + block.offset;
  return Tensor::view(DType::kFloat32, block.shape, data, hold_, {}, true);
}

}  // namespace penstock::train
