#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "penstock/train/hogwild_worker.h"
#include "penstock/train/thread_group.h"

namespace penstock::train {

// What a run of Hogwild came to, or has come to so far.
struct HogwildReport {
  uint64_t steps = 0;       // that were finished
  uint64_t updates = 0;     // that were applied
  uint64_t skipped = 0;     // gradients that were not finite and not applied
  uint64_t non_finite = 0;  // gradients that were not finite
  double seconds = 0;
  uint64_t copied = 0;  // bytes of weights and gradients that were copied for a framework
  // The mean of all losses that were noted, and of the last hundred or so of each worker; NaN if
  // none was.
  double loss = std::numeric_limits<double>::quiet_NaN();
  double recent_loss = std::numeric_limits<double>::quiet_NaN();
  double updates_per_second() const {
    return seconds > 0 ? static_cast<double>(updates) / seconds : 0;
  }
  // Of each apply() or count(): how many updates came between its worker's read and its write.
  // (least staleness of a bucket, how often); exact below HogwildBoard::kExact, then by powers of
  // two. Buckets with none are left out.
  std::vector<std::pair<uint64_t, uint64_t>> staleness;
  std::vector<std::pair<uint64_t, uint64_t>> workers;  // steps and updates of each
};

// Adds up what all workers of a board did since `before`, which has each one's counts then.
HogwildReport report_of(const HogwildBoard& board, std::span<const HogwildBoard::Counts> before,
                        double seconds);

// Threads that compute gradients and apply them to the same weights at the same time, with no lock
// (Niu et al. 2011). Takes an updater's parameters, optimizer and state; nobody else applies with
// it during a run. docs/training.md, section 7.
//
//   Hogwild hogwild(updater, 2);
//   HogwildReport report = hogwild.run([&](HogwildWorker& worker) -> Hogwild::Step {
//     return [&worker, gradients = worker.parameters().gradients(), &feed] {
//       std::optional<Batch> batch = feed.take();  // with a lock of its own
//       if (!batch) return false;
//       worker.read();
//       compute(worker.weights(), *batch, gradients);
//       worker.apply(gradients);
//       return true;
//     };
//   });
//
// Threads: one at a time.
class Hogwild {
 public:
  struct Options {
    // Each worker has state of its own: worker 0 the updater's, the others copies of it that live
    // as long as this does.
    bool own_state = false;
    NonFinite non_finite = NonFinite::kRaise;
    // Whether each worker computes with a copy of its own (HogwildWorker::weights), which nobody
    // else changes: forward and backward pass then see the same. kUpdate is for dense gradients and
    // weights of which a worker's cache holds as many more: of each line that others change a
    // worker fetches the newest once in a step and not twice. A step that does not begin with
    // read() computes with what it had.
    Snapshots snapshots = Snapshots::kNone;
    // So many groups of workers, each with weights and state of its own (replica.h), worker i in
    // group i * replicas / workers, after its first step on cores that are near to each other. They
    // are merged into the updater's weights now and then, and when a run ends; its state is the
    // first group's. Staleness counts the group's own updates. 1: all change the updater's weights.
    size_t replicas = 1;
    uint64_t merge_every = 0;  // updates of a worker; 0: as often as takes a tenth of its time
  };
  // One step of a worker; false: there is nothing left for it to do.
  using Step = std::function<bool()>;
  // Called by each worker on its thread when a run begins.
  using MakeStep = std::function<Step(HogwildWorker&)>;

  // When a run ends before every worker's step returned false.
  struct Until {
    uint64_t steps = UINT64_MAX;                            // of all workers together, exactly
    int64_t duration_ns = -1;                               // < 0: for ever; steps are finished
    std::function<bool(const HogwildReport&)> enough = {};  // asked on run()'s thread
    int64_t ask_every_ns = 100'000'000;
  };

  // `updater` must outlive this. Error kInvalidArgument (no workers, or fewer than replicas; no
  // replicas), kOutOfMemory.
  Hogwild(Updater& updater, size_t workers, Options options);
  Hogwild(Updater& updater, size_t workers) : Hogwild(updater, workers, Options()) {}

  // Workers that are made elsewhere, such as in other processes, and share this board.
  Hogwild(Updater& updater, HogwildBoard board);

  // Returns when all workers have ended. What a worker, `make` or `enough` throws stops all and is
  // thrown here once they have; failed() says whose it was.
  HogwildReport run(const MakeStep& make, const Until& until);
  HogwildReport run(const MakeStep& make) { return run(make, Until()); }
  // Calls work(number) on a thread for each worker: it takes steps from the board until there are
  // no more. `started` is called when all threads have begun; the run's time begins after it.
  HogwildReport run_workers(const std::function<void(size_t worker)>& work, const Until& until,
                            Threading threading = {}, const std::function<void()>& started = {});

  struct Failed {
    size_t worker;
    uint64_t step;  // of that worker, from 0
  };
  // The worker whose exception ended the last run.
  const std::optional<Failed>& failed() const { return failed_; }

  const HogwildBoard& board() const { return board_; }
  std::vector<HogwildWorker>& workers() { return workers_; }
  size_t group_of(size_t worker) const;

 private:
  void work(HogwildWorker& worker, const MakeStep& make);

  Updater& updater_;
  const Options options_;
  HogwildBoard board_;
  std::vector<std::shared_ptr<Replica>> replicas_;  // none, or two and more
  std::vector<HogwildWorker> workers_;
  std::optional<Failed> failed_;
};

}  // namespace penstock::train
