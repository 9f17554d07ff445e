#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "penstock/memory/example.h"
#include "penstock/pipeline/streams/section_result.h"
#include "penstock/workers/worker.h"

namespace penstock {

// What a C++ Loader's worker hands over beside rows: Unit::object points at one.
struct Outcome {
  struct Loss {
    uint32_t row = 0;  // of the whole batch
    uint64_t index = 0;
    bool replaced = false;
    std::string reason;
    // Of elements that are handed out one by one: it is to be raised at its place.
    std::exception_ptr error;
    std::string stage;
    bool gap = true;  // of a Dataset: the row is not there; else it is, made of other elements
  };
  Example batch;             // kPacket
  std::exception_ptr error;  // kError
  uint64_t index = 0;        // whose error it is: of the sample, or a position in the stage
  std::string stage;         // of a Dataset, its title
  std::vector<Loss> losses;  // any other kind
  SectionResult section;     // of a section's element
};

// Finishes the slot with `outcome`; where the ticket was taken away meanwhile, it goes.
bool hand_over(Slot& slot, ResultKind kind, uint64_t bytes, std::unique_ptr<Outcome> outcome);
// What a unit carries, if anything; it is the unit's no longer.
std::unique_ptr<Outcome> take_outcome(Unit& unit);

// Of elements that were left out before there was a row for them.
std::vector<Outcome::Loss> losses_of(const std::vector<Failure>& left_out);

}  // namespace penstock
