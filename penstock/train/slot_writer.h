#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "penstock/train/weights_layout.h"
#include "penstock/train/weights_memory.h"

namespace penstock::train {

// The learner's choice of slots: versions go where nobody reads. A slot gets memory when all that
// have some are held. After every kWindow versions, memory beyond the most that was needed for one
// of them is given back.
//
// Not synchronised.
class SlotWriter {
 public:
  static constexpr uint64_t kWindow = 64;

  explicit SlotWriter(std::shared_ptr<const WeightsMemory> memory) : memory_(std::move(memory)) {}

  // Copies `values` (all floats of a slab) and makes them current. Never waits for a reader. False,
  // with nothing changed, if all slots are held, or there is no memory for one more.
  bool publish(std::span<const float> values, uint64_t version);

  uint32_t backed() const;  // slots that have memory
  // How many slept when the last version came: WeightsMemory::announce().
  uint32_t sleepers() const { return sleepers_; }

 private:
  int choose(uint64_t held);  // -1: none
  bool back(uint32_t slot);
  void give_back(uint64_t held, uint32_t surplus);

  const std::shared_ptr<const WeightsMemory> memory_;
  uint64_t published_ = 0;  // versions so far
  uint64_t file_end_ = 0;   // how long the file was made
  uint64_t backed_ = 0;     // a bit per slot
  uint32_t sleepers_ = 0;
  uint32_t most_ = 0;  // slots that a version of this window needed
};

}  // namespace penstock::train
