// Any bytes in the memory of a channel. A producer that writes them loses its connection at most,
// and the learner goes on with others; a learner that writes them makes a producer's put() fail at
// most, and neither reads or writes outside the ring.
//
//   byte 0: the two lowest bits: the policy; bit 7: the learner writes, else the producer   bytes 1
//   to 24: the ring's tail, head and number of items   then the ring
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fuzz/require.h"
#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/train/channel.h"
#include "penstock/train/channel_memory.h"
#include "penstock/train/named_socket.h"
#include "penstock/train/producer.h"

using namespace penstock;
using namespace penstock::train;

namespace {

constexpr uint64_t kCapacity = 4096;

Example an_item() {
  Tensor x = Tensor::make(DType::kInt64, {3});
  std::ranges::fill(x.as_span<int64_t>(), 7);
  return {{"x", x}};
}

// A connection as a producer's, which uses the memory by itself.
struct UnknownProcess {
  explicit UnknownProcess(const std::string& name) {
    peer = connect_to_name("channel", name);
    REQUIRE(peer);
    GreetingReader reader;
    const Deadline deadline(20);
    auto state = GreetingReader::State::kMore;
    while (state == GreetingReader::State::kMore && !deadline.passed()) {
      state = reader.read(peer->fd.get());
    }
    REQUIRE(state == GreetingReader::State::kComplete);
    row = reader.greeting().row;
    memory = ChannelMemory::open(reader.take_descriptor());
  }

  std::optional<Peer> peer;
  std::shared_ptr<ChannelMemory> memory;
  uint32_t row = 0;
};

void write(const ChannelMemory& memory, uint32_t row, const uint8_t* data, size_t size) {
  uint64_t words[3] = {};
  const size_t count = std::min(size, sizeof(words));
  std::memcpy(words, data, count);
  const RingMapping ring = memory.map_ring(row);
  std::memcpy(ring.data(), data + count, std::min(size - count, size_t{kCapacity}));
  memory.words(row).head.store(words[1]);
  memory.words(row).put.store(words[2]);
  memory.words(row).tail.store(words[0]);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  static const std::string name = "fuzz-" + std::to_string(now_ns());
  const auto when_full = static_cast<WhenFull>(data[0] % 3);
  Channel channel(name, {.capacity = kCapacity, .when_full = when_full});
  if (data[0] & 128) {
    Producer producer(name);
    const UnknownProcess learner(name);
    const uint32_t row = 1 - learner.row;
    write(*learner.memory, row, data + 1, size - 1);
    try {
      for (int i = 0; i < 30; ++i) producer.put(an_item(), 0);
    } catch (const Error& error) {
      REQUIRE(error.code() == Code::kTimeout || error.code() == Code::kClosed);
    }
    return 0;
  }
  const UnknownProcess unknown(name);
  write(*unknown.memory, unknown.row, data + 1, size - 1);
  bool evicted = false;
  for (int i = 0; i < 3 && !evicted; ++i) {
    try {
      const Items items = channel.get(100, 0);
      for (size_t item = 0; item < items.size(); ++item) {
        const auto [block, row] = items[item];
        (void)items.blocks()[block].row(row);
      }
    } catch (const Error& error) {
      REQUIRE(error.code() == Code::kDataLoss || error.code() == Code::kInvalidArgument);
      evicted = true;
    }
  }
  (void)channel.stats();
  Producer honest(name);
  REQUIRE(honest.put(an_item(), 1'000'000'000));
  for (;;) {  // what the unknown's ring still holds comes, too
    try {
      if (channel.get(100, 1'000'000'000).size() > 0) break;
    } catch (const Error& error) {
      REQUIRE(error.code() == Code::kDataLoss || error.code() == Code::kInvalidArgument);
    }
  }
  return 0;
}
