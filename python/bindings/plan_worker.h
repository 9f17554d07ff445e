#pragma once

#include <memory>

#include "packets.h"
#include "penstock/pipeline/engine/chain_worker.h"

namespace nanobind {
class module_;
}

namespace penstock::python {

// Hands over the results of a chain's worker in another process: rows are in the batch already;
// losses and exceptions are packets, for which this takes the GIL.
class PacketOutlet : public ChainWorker::Outlet {
 public:
  explicit PacketOutlet(Packets& packets) : packets_(packets) {}
  void rows(Slot& slot, uint64_t bytes, std::vector<Outcome::Loss> losses) override;
  void fail(Slot& slot, const Ticket& ticket, Failure failure) override;
  // Error kInternal: a C++ object cannot leave its process.
  void item(Slot& slot, const Ticket& ticket, void* item,
            std::vector<Outcome::Loss> losses) override;
  // Packs (failure, [note, ...]), each (exception or None, stage, position, text, decision,
  // unsure); nothing if there is neither.
  void element(Slot& slot, const Ticket& ticket, uint64_t bytes, ParallelMapResult result) override;

 private:
  Packets& packets_;
};

void bind_plan_worker(nanobind::module_& m);

}  // namespace penstock::python
