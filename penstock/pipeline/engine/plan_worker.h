#pragma once

#include <functional>
#include <memory>

#include "penstock/pipeline/engine/chain_worker.h"
#include "penstock/pipeline/plan/plan.h"
#include "penstock/workers/ticket_runner.h"

namespace penstock {

// A worker for all lanes of the ring: for the plan and all of its parallel maps. `outlet` is called
// once for each of them.
std::unique_ptr<TicketRunner> worker_of_plan(
    const std::shared_ptr<const Plan>& plan, const ChainWorker::Options& options, TicketRing& ring,
    const std::function<std::unique_ptr<ChainWorker::Outlet>()>& outlet);

}  // namespace penstock
