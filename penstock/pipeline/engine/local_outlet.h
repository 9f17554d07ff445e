#pragma once

#include <memory>

#include "penstock/pipeline/engine/chain_worker.h"
#include "penstock/pipeline/streams/section.h"

namespace penstock {

// How the results of workers in the consumer's own process leave them, and arrive: as Outcomes.
std::unique_ptr<ChainWorker::Outlet> local_outlet();

class LocalInlet : public SectionInlet {
 public:
  SectionResult take(Unit& unit) override;
};

}  // namespace penstock
