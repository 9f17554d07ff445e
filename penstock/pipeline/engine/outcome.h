#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "penstock/memory/example.h"
#include "penstock/pipeline/streams/parallel_map.h"
#include "penstock/workers/ticket_runner.h"

namespace penstock {

// An element or sample that its error policy skipped or replaced.
struct Loss {
  uint32_t row = 0;    // of the batch
  uint64_t index = 0;  // of the sample in the data set, or the position in the stage
  bool replaced = false;
  std::string reason;
  // Set if elements are delivered one by one: the error is raised at this place.
  std::exception_ptr error = nullptr;
  std::string stage = {};
  bool gap = true;  // the row is missing; false: the row exists, made of other elements
};

// The result of a ticket without its rows, in the consumer's own process. Task::object points to
// it.
struct Outcome {
  Example batch;                   // kPacket
  std::exception_ptr error;        // kError
  uint64_t index = 0;              // of the failed sample, or its position in the stage
  std::string stage;               // title of the failed stage of a Dataset
  std::vector<Loss> losses;        // any other kind
  ParallelMapResult parallel_map;  // for an element of a parallel map
};

// Finishes the slot with `outcome`. False: the ticket was withdrawn, and `outcome` is dropped.
bool hand_over(Slot& slot, ResultKind kind, uint64_t bytes, std::unique_ptr<Outcome> outcome);
// Takes the outcome of a task; nullptr: it has none.
std::unique_ptr<Outcome> take_outcome(Task& task);

// Losses for elements that were skipped before they had a row.
std::vector<Loss> losses_of(const std::vector<Failure>& left_out);

}  // namespace penstock
