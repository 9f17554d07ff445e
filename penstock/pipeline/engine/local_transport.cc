#include "penstock/pipeline/engine/local_transport.h"

#include <string>
#include <utility>
#include <vector>

#include "penstock/memory/copy.h"
#include "penstock/pipeline/engine/outcome.h"

namespace penstock {
namespace {

// Copies the item's tensors whose memory has other references, because that memory may be
// overwritten (a reused buffer) while the consumer still uses the item. Returns the item's bytes.
uint64_t detach(Example& item, WorkerCounters& counters) {
  uint64_t bytes = 0;
  std::vector<std::pair<std::string, Tensor>> copies;
  for (const auto& [name, tensor] : item) {
    long own = 0;
    for (const auto& other : item) own += other.second.owner() == tensor.owner();
    bytes += tensor.nbytes();
    if (tensor.owner() != nullptr && tensor.owner().use_count() == own) {
      count_avoided_copy(counters, tensor.nbytes());
      continue;
    }
    CopyReason reason = tensor.owner() == nullptr ? CopyReason::kNotOwned : CopyReason::kReferenced;
    count_copy(counters, reason, tensor.nbytes());
    copies.emplace_back(name, tensor.copy());
  }
  for (auto& [name, copy] : copies) item.set(name, std::move(copy));
  return bytes;
}

class LocalOutlet : public ChainWorker::Outlet {
 public:
  void rows(Slot& slot, uint64_t bytes, std::vector<Loss> losses) override {
    std::unique_ptr<Outcome> outcome;
    if (!losses.empty()) {
      outcome = std::make_unique<Outcome>();
      outcome->losses = std::move(losses);
    }
    hand_over(slot, ResultKind::kRows, bytes, std::move(outcome));
  }
  void item(Slot& slot, const Ticket&, void* item, std::vector<Loss> losses) override {
    auto outcome = std::make_unique<Outcome>();
    outcome->batch = std::move(*static_cast<Example*>(item));
    outcome->losses = std::move(losses);
    const uint64_t bytes = detach(outcome->batch, slot.counters());
    slot.counters().bytes.add_single_writer(bytes);
    hand_over(slot, ResultKind::kPacket, bytes, std::move(outcome));
  }
  void fail(Slot& slot, const Ticket&, Failure failure) override {
    auto outcome = std::make_unique<Outcome>();
    outcome->error = std::move(failure.error);
    outcome->index = failure.position;
    outcome->stage = std::move(failure.stage);
    hand_over(slot, ResultKind::kError, 0, std::move(outcome));
  }
  void element(Slot& slot, const Ticket&, uint64_t bytes, ParallelMapResult result) override {
    const ResultKind kind = result.failure ? ResultKind::kError : ResultKind::kRows;
    std::unique_ptr<Outcome> outcome;
    if (result.failure || !result.notes.empty()) {
      outcome = std::make_unique<Outcome>();
      outcome->parallel_map = std::move(result);
    }
    hand_over(slot, kind, bytes, std::move(outcome));
  }
};

}  // namespace

std::unique_ptr<ChainWorker::Outlet> LocalTransport::outlet() {
  return std::make_unique<LocalOutlet>();
}

std::vector<Loss> LocalTransport::losses_in(Task& task) {
  std::unique_ptr<Outcome> outcome = take_outcome(task);
  return outcome == nullptr ? std::vector<Loss>() : std::move(outcome->losses);
}

ParallelMapResult LocalTransport::Results::take(Task& task) {
  std::unique_ptr<Outcome> outcome = take_outcome(task);
  return outcome == nullptr ? ParallelMapResult() : std::move(outcome->parallel_map);
}

}  // namespace penstock
