#include "penstock/pipeline/engine/plan_worker.h"

#include <utility>
#include <vector>

namespace penstock {
namespace {

// One worker per lane. They share their scratch memory, because none of them uses it between
// tickets.
class WorkerOfLanes : public TicketRunner {
 public:
  WorkerOfLanes(const std::shared_ptr<const Plan>& plan, ChainWorker::Options options,
                TicketRing& ring,
                const std::function<std::unique_ptr<ChainWorker::Outlet>()>& outlet) {
    add(plan, options, ring, outlet());
    if (ring.lanes() == 1) return;
    options.parallel_map = true;
    for (const auto& parallel_map : plan->parallel_maps())
      add(parallel_map, options, ring, outlet());
  }
  void run(const Ticket& ticket, Slot& slot) override { lanes_[ticket.lane]->run(ticket, slot); }

 private:
  void add(const std::shared_ptr<const Plan>& plan, const ChainWorker::Options& options,
           TicketRing& ring, std::unique_ptr<ChainWorker::Outlet> outlet) {
    lanes_.push_back(
        std::make_unique<ChainWorker>(plan, options, ring, scratch_, std::move(outlet)));
  }

  Scratch scratch_;
  std::vector<std::unique_ptr<ChainWorker>> lanes_;
};

}  // namespace

std::unique_ptr<TicketRunner> worker_of_plan(
    const std::shared_ptr<const Plan>& plan, const ChainWorker::Options& options, TicketRing& ring,
    const std::function<std::unique_ptr<ChainWorker::Outlet>()>& outlet) {
  return std::make_unique<WorkerOfLanes>(plan, options, ring, outlet);
}

}  // namespace penstock
