#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "penstock/train/server/parameter_client.h"
#include "penstock/train/server/parameter_server.h"

namespace penstock::train::testing {

inline constexpr char kLocal[] = "unix:@";
inline constexpr char kTcp[] = "tcp://127.0.0.1:0";

// A shard for tests, and pushes for it.
struct OneShard {
  static constexpr size_t kFloats = 200'000;  // several chunks

  explicit OneShard(const ServerMode& mode = {}, uint32_t copies = 2,
                    Optimizer its_optimizer = Optimizer::sgd(1.0))
      : optimizer(its_optimizer),
        memory(ShardMemory::make({.floats = kFloats,
                                  .states = static_cast<uint32_t>(optimizer.state_slabs()),
                                  .copies = copies},
                                 optimizer.initial_state())),
        shard(std::make_unique<Shard>(memory, optimizer, mode)) {}

  // Like a process that was started after the last one was killed.
  void start_again(const ServerMode& mode = {}) {
    shard = std::make_unique<Shard>(ShardMemory::open(memory->fd(), ShardMemory::Access::kWrite),
                                    optimizer, mode);
  }

  float weight(size_t at = 0) const { return memory->weights(memory->current().copy)[at]; }
  bool all_weights_are(float value) const {
    return std::ranges::all_of(memory->weights(memory->current().copy),
                               [&](float each) { return each == value; });
  }

  Optimizer optimizer;
  std::shared_ptr<ShardMemory> memory;
  std::unique_ptr<Shard> shard;
};

// A push in which all numbers are equal.
class Full {
 public:
  Full(uint64_t worker, uint64_t sequence, float value, size_t floats = OneShard::kFloats)
      : values_(floats, value) {
    push.worker = worker;
    push.sequence = sequence;
    push.gradient = Gradient(Encoding::kFloat32, std::as_bytes(std::span(values_)), floats);
    push.squares = static_cast<double>(value) * value * static_cast<double>(floats);
  }
  Full(const Full&) = delete;
  Full& operator=(const Full&) = delete;

  Shard::Push push;

 private:
  std::vector<float> values_;
};

}  // namespace penstock::train::testing
