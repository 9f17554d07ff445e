// Any bytes as the memory that a learner publishes weights in: it is refused, or holding a version
// is an error, or its floats lie in the memory.
//
//   bytes 0 to 127: the header, from its first word   then the layout's JSON
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "fuzz/require.h"
#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/train/weights_memory.h"

using namespace penstock;
using namespace penstock::train;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kHeader = 128, kSlotsBytes = 64 * 4096;
  const size_t header = std::min(size, kHeader);
  const uint64_t bytes = kJsonAt + (size / 4096 + 1) * 4096 + kSlotsBytes;
  os::Fd fd = os::memory_file("penstock-fuzz", bytes);
  REQUIRE(::pwrite(fd.get(), data, header, 0) == static_cast<ssize_t>(header));
  const size_t json = size - header;
  REQUIRE(::pwrite(fd.get(), data + header, json, kJsonAt) == static_cast<ssize_t>(json));
  try {
    const auto memory = WeightsMemory::open(std::move(fd));
    (void)memory->newest();
    const auto held = memory->hold(7);
    if (!held) return 0;
    REQUIRE(held->slot < kSlots);
    const auto values = memory->values(held->slot);
    REQUIRE(values.size() == memory->layout().floats());
    float sum = 0;
    if (memory->offset_of(held->slot) + values.size_bytes() <= bytes) {
      for (const float each : values) sum += each;
    }
    REQUIRE(sum == 0 || sum != 0 || sum != sum);
    memory->release(7, held->slot);
  } catch (const Error& error) {
    REQUIRE(error.code() == Code::kInvalidArgument || error.code() == Code::kDataLoss ||
            error.code() == Code::kOutOfMemory);
    REQUIRE(!std::string(error.what()).empty());
  }
  return 0;
}
