// Any words in memory that training processes share: the counters of Hogwild's workers, and the
// memory of a shard, before and after it is opened. It is refused, or nothing outside of it is
// read.
//
//   byte 0: bit 0: a shard's memory, else counters; bit 1: written after it was opened
//   byte 1: the first word of the header that is written   then its bytes
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "fuzz/input.h"
#include "fuzz/require.h"
#include "penstock/base/error.h"
#include "penstock/train/server/shard_memory.h"
#include "penstock/train/shared_counters.h"

using namespace penstock;
using namespace penstock::train;

namespace {

constexpr size_t kWorkers = 3, kHeader = 1024;

void write(int fd, Input& input) {
  const size_t at = input.byte() * sizeof(uint64_t) % kHeader;
  const auto bytes = input.take(std::min(input.left(), kHeader - at));
  REQUIRE(::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(at)) ==
          static_cast<ssize_t>(bytes.size()));
}

void read(const SharedCounters& counters) {
  REQUIRE(counters.workers() <= kWorkers);
  for (size_t worker = 0; worker < counters.workers(); ++worker) {
    counters.note_applied(worker, 1, 7);
    (void)counters.counts(worker);
  }
  (void)counters.claim_step();
}

void read(const ShardMemory& memory) {
  const ShardMemory::Current current = memory.current();
  REQUIRE(current.copy < memory.shape().copies && current.record < 2);
  (void)memory.record();
  const auto checkpoint = memory.checkpoint();
  REQUIRE(checkpoint->weights.size() == memory.shape().floats);
  REQUIRE(checkpoint->states.size() == memory.shape().states);
  REQUIRE(memory.saving_failed().size() <= ShardMemory::kMaxReasonBytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const uint8_t mode = input.byte();
  try {
    if (mode & 1) {
      const auto made = ShardMemory::make({.floats = 100, .states = 1, .copies = 2}, 0);
      if (!(mode & 2)) write(made->fd(), input);
      const auto opened = ShardMemory::open(made->fd(), ShardMemory::Access::kRead);
      if (mode & 2) write(made->fd(), input);
      read(*made);
      read(*opened);
    } else {
      const auto made = SharedCounters::make(kWorkers, true);
      if (!(mode & 2)) write(made.fd(), input);
      const auto opened = SharedCounters::open(made.fd());
      if (mode & 2) write(made.fd(), input);
      read(made);
      if (mode & 2) read(opened);
    }
  } catch (const Error& error) {
    REQUIRE(error.code() == Code::kInvalidArgument);
  }
  return 0;
}
