#include "penstock/base/random.h"

namespace penstock {

void RandomStream::fill(std::span<uint32_t> out) {
  while (!out.empty() && used_ < 4) {
    out.front() = next_u32();
    out = out.subspan(1);
  }
  size_t blocks = out.size() / 4;
  philox::fill(out.data(), 4 * blocks, key_, counter_);
  counter_[0] += static_cast<uint32_t>(blocks);
  for (uint32_t& word : out.subspan(4 * blocks)) word = next_u32();
}

}  // namespace penstock
