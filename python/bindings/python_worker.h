#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "failures.h"
#include "gil_handover.h"
#include "numpy_api.h"
#include "packets.h"
#include "penstock/observe/snapshot.h"
#include "penstock/pipeline/scheduler/order.h"
#include "penstock/pipeline/stages/stage_clock.h"
#include "penstock/workers/link.h"
#include "penstock/workers/ticket_runner.h"
#include "rows.h"
#include "sample_settings.h"

namespace penstock::python {

inline constexpr uint32_t kAllAtOnce = UINT32_MAX;  // Call::what of __getitems__
// The error of a row that must not be tried again (RingSupervisor::poison).
inline constexpr const char* kPoisoned = "timed out, or its worker died, as often as is allowed";

// Runs the user's Python for tickets. One thread, which holds the GIL around every call here.
class PythonWorker : public TicketRunner {
 public:
  // Hands over results: as objects in the consumer's process, or as packets.
  struct Outlet {
    Allocator* arena = nullptr;  // null: objects
    uint32_t number = 0;
    int link = -1;
    GilHandover* handover = nullptr;  // for threads
  };
  // source: the map, or for streams a callable (stream) -> iterator. collate: None, or a callable
  // (list of samples) -> batch. update: a callable (version) -> new length, or None.
  PythonWorker(const SampleSettings& settings, PyObject* source, PyObject* collate,
               PyObject* update, TicketRing& ring, Outlet outlet);
  ~PythonWorker() override;

  void run(const Ticket& ticket, Slot& slot) override;
  void before_wait() override;
  void after_wait() override;
  bool wanted() const override;
  void give_way() override;
  void catch_up() override;

  // Indices for user code: numbers, or any objects of a sampler.
  struct Indices {
    std::vector<uint64_t> numbers;
    Owned objects;                   // a list, instead of numbers
    PyObject* at(size_t row) const;  // new reference
  };
  // The indices that a sampler listed for some rows of a batch (BatchEntry::input_offset). False:
  // a Python exception is set.
  static bool load_listed(const std::byte* listed, uint32_t begin, uint32_t end, Indices& out);

  // The stages whose times are counted, by place.
  enum Stage : uint32_t { kGet, kCollate, kRows, kHandOver };
  static std::vector<std::string> stages(bool stream) {
    return {stream ? "next()" : "__getitem__", "collate", "rows", std::string(kHandOverStage)};
  }

 private:
  // Uses a sample: as a row, or an element of a list. False: a Python exception is set.
  using Use = std::function<bool(PyObject* sample, uint64_t index)>;

  bool update(uint64_t version);
  bool load_indices(const Ticket& ticket, Slot& slot);
  uint64_t key_of(const Ticket& ticket, uint32_t row) const {
    return key_in(indices_, row, ticket, ticket.begin + row);
  }
  uint64_t key_in(const Indices& indices, uint32_t at, const Ticket& ticket, uint32_t row) const;
  bool sample(const Ticket& ticket, Slot& slot, uint32_t row, Owned fetched, const Use& use);
  bool substitute(const Ticket& ticket, Slot& slot, uint32_t row, uint64_t key, const Use& use);
  Owned stand_in(const Ticket& ticket, uint32_t row, uint32_t n, const Indices& listed,
                 uint64_t& key) const;
  Owned get(const Ticket& ticket, Slot& slot, uint32_t row, uint64_t key);
  Owned attempt(const Ticket& ticket, PyObject* index, uint64_t key);
  bool passes_over() const;
  bool note_loss(uint32_t row, uint64_t index, bool replaced);
  void run_item(const Ticket& ticket, Slot& slot);
  void run_rows(const Ticket& ticket, Slot& slot);
  void run_collate(const Ticket& ticket, Slot& slot);
  void run_stream(const Ticket& ticket, Slot& slot);
  bool add_row(const Ticket& ticket, Slot& slot, PyObject* sample, uint32_t row, uint64_t index,
               uint32_t whole);
  bool add_objects(const std::vector<Owned>& objects);
  bool refuse_unlike(Slot& slot, uint64_t index);
  void finish_rows(const Ticket& ticket, Slot& slot, uint32_t count);
  // `last`: the ticket's row of the last sample.
  Owned collated(Slot& slot, PyObject* samples, uint32_t last);
  // Repeats the call after an exception, up to `retries` times.
  template <class Call>
  Owned tried(const Call& call) {
    for (uint32_t left = settings_.retries;; --left) {
      Owned value = call();
      if (value) return value;
      ring_.place(worker_).counters.errors.add_single_writer();
      if (left == 0 || !is_error()) return value;
      PyErr_Clear();
      ring_.consumer().retried.add();
    }
  }
  Owned get_all(uint32_t count);
  void tell_together();
  // Called when the samples were fetched one by one without a failure: counts the exception of
  // __getitems__, but no loss.
  void note_together() {
    if (together_ && losses_.empty()) ring_.consumer().errors.add();
  }
  void fetch_all(const Ticket& ticket, Slot& slot, std::vector<Owned>& samples);
  // `last`: the index of the batch's last row, if the failure is not of one index.
  void fail(const Ticket& ticket, Slot& slot, uint32_t row, uint64_t index, int64_t last = -1);
  void fail_batch(const Ticket& ticket, Slot& slot) {
    const uint32_t more = ticket.end - ticket.begin - 1;
    fail(ticket, slot, 0, key_of(ticket, 0),
         more == 0 ? -1 : static_cast<int64_t>(key_of(ticket, more)));
  }
  void emit(Slot& slot, ResultKind kind, Owned value, uint64_t extra_bytes = 0);
  void emit_with_losses(Slot& slot, Owned value);
  static bool is_error();
  static std::string pending_error();

  SampleSettings settings_;
  Owned source_, getitems_, collate_, update_;
  TicketRing& ring_;
  Outlet outlet_;
  std::unique_ptr<Packets> packets_;
  Order order_;
  uint64_t version_ = 0;
  Owned late_;  // an update's exception: every later ticket raises it, too
  PyThreadState* released_ = nullptr;

  // For the current ticket:
  uint32_t worker_ = 0;
  Indices indices_;
  Sample taken_;
  std::vector<Loss> losses_;
  bool unlike_ = false;  // a sample differs from the batch's others
  std::byte* base_ = nullptr;
  Owned columns_;   // object columns: a list of lists
  Owned together_;  // an exception of __getitems__, after which samples are fetched one by one
  StageClock clock_;
  StageClock::Kind gets_, collates_, writes_, hand_overs_;

  // The layout of the last batch; the next one probably has the same.
  std::vector<std::byte> known_spec_;
  uint64_t known_rows_ = 0;
  RowLayout known_layout_;

  // Streams.
  struct Stream {
    Owned iterator;
    uint64_t epoch = UINT64_MAX;
    uint64_t next = 0;  // its ordinal
    bool ended = false;
  };
  std::vector<Stream> streams_;
};

}  // namespace penstock::python
