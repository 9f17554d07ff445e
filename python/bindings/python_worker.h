#pragma once

#include <Python.h>

#include <cstdint>
#include <optional>

#include "generator_items.h"
#include "gil.h"
#include "numpy_api.h"
#include "penstock/workers/ticket_runner.h"
#include "result_outlet.h"
#include "row_writer.h"
#include "sample_calls.h"
#include "sample_fetcher.h"
#include "sample_losses.h"
#include "sample_settings.h"
#include "worker_times.h"

namespace penstock::python {

// Runs tickets by calling the user's Python code. One thread, which holds the GIL around every call
// here.
//
// For each ticket: SampleFetcher or GeneratorItems get the samples, by SampleCalls; SampleLosses
// decides about exceptions; RowWriter writes the samples, or `collate` makes a batch of them;
// ResultOutlet finishes the slot.
class PythonWorker : public TicketRunner {
 public:
  // source: the map, or for streams a callable (stream, epoch) -> iterable. collate: None, or a
  // callable (list of samples) -> batch. update: a callable (version) -> new length, or None.
  // `handover`: for threads, or null.
  PythonWorker(const SampleSettings& settings, PyObject* source, PyObject* collate,
               PyObject* update, TicketRing& ring, const ResultOutlet::Target& target,
               GilHandover* handover = nullptr);
  ~PythonWorker() override;

  void run(const Ticket& ticket, Slot& slot) override;
  void before_wait() override;
  void after_wait() override;
  bool wanted() const override;
  void give_way() override;
  void catch_up() override;

 private:
  // The samples of a ticket that RowWriter does not write.
  struct Kept {
    Owned item;     // a whole batch
    Owned samples;  // a list, for collate
  };
  bool update(uint64_t version);
  void run_map(Slot& slot);
  void run_stream(Slot& slot);
  Kept kept() const;
  bool add(Slot& slot, Kept& kept, PyObject* sample, uint32_t row, uint64_t index);
  bool finish(Slot& slot, Kept kept, uint32_t count, uint32_t last);
  void finish_rows(Slot& slot, uint32_t count);
  Owned collated(Slot& slot, PyObject* samples, uint32_t last);
  void hand_over_with_losses(Slot& slot, Owned value);
  void hand_over(Slot& slot, ResultKind kind, Owned value, uint64_t more_bytes = 0);

  const SampleSettings settings_;
  Owned collate_, update_;
  TicketRing& ring_;
  GilHandover* handover_;
  const int link_;
  WorkerTimes times_;
  SampleLosses losses_;
  SampleCalls calls_;
  std::optional<SampleFetcher> map_;
  std::optional<GeneratorItems> stream_;  // if there is no map
  RowWriter rows_;
  ResultOutlet outlet_;
  uint64_t version_;  // of the dataset
  Owned late_;        // an update's exception: every later ticket raises it, too
  PyThreadState* released_ = nullptr;
};

}  // namespace penstock::python
