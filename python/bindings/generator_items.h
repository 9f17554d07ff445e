#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "failures.h"
#include "numpy_api.h"
#include "sample_calls.h"
#include "sample_losses.h"

namespace penstock::python {

// Pulls the items of a ticket from generators, and keeps the position in each. One thread, with the
// GIL.
class GeneratorItems {
 public:
  // Uses an item: as a row, or an element of a list. False: a Python exception is set.
  using Use = std::function<bool(PyObject* item, uint32_t row, uint64_t ordinal)>;

  // open: a callable (stream, epoch) -> iterable. Settings, calls and losses outlive this.
  GeneratorItems(const SampleSettings& settings, PyObject* open, SampleCalls& calls,
                 SampleLosses& losses);

  struct Pulled {
    std::optional<FailurePlace> failed;  // of the exception that is set and must be raised
    uint64_t first = 0;                  // the ordinal of the ticket's first item in its stream
    uint32_t count = 0;                  // items that were used
    uint32_t last = 0;                   // the ticket's row of the last one
    bool ended = false;                  // the stream has no more items
  };
  // Pulls the ticket's items, under the error policy, and uses each. With losses, fewer are used
  // than were pulled.
  Pulled pull(Slot& slot, const Use& use);

 private:
  struct Stream {
    Owned iterator;
    uint64_t epoch = UINT64_MAX;
    uint64_t next = 0;  // the ordinal of its next ticket
    bool ended = false;
  };
  std::optional<FailurePlace> open(Slot& slot, Stream& stream, uint64_t first);
  Owned next(Slot& slot, Stream& stream, uint64_t ordinal);
  void set_key(Slot& slot, uint64_t ordinal);

  const SampleSettings& settings_;
  Owned open_;
  SampleCalls& calls_;
  SampleLosses& losses_;
  std::vector<Stream> streams_;
};

}  // namespace penstock::python
