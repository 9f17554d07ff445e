#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "numpy_api.h"
#include "penstock/pipeline/scheduler/order.h"
#include "penstock/workers/slot.h"
#include "sample_settings.h"

namespace penstock::python {

// Indices for user code: numbers, or any objects of a sampler.
struct Indices {
  std::vector<uint64_t> numbers;
  Owned objects;  // a list, instead of numbers
  Owned at(size_t row) const;
};

// The indices that ListedTickets listed for rows [begin, end) of a batch. False: a Python exception
// is set.
bool read_listed(const std::byte* listed, uint32_t begin, uint32_t end, Indices& out);

// The indices of a ticket's rows, and of the samples that may replace them. One thread, with the
// GIL.
class TicketIndices {
 public:
  explicit TicketIndices(const SampleSettings& settings)
      : order_(settings.order), covers_(settings.covers) {}

  // The length of the data set has changed.
  void set_length(uint64_t length);
  // Begins a ticket. False: a Python exception is set.
  bool load(Slot& slot);

  Owned at(uint32_t row) const { return indices_.at(row); }
  // The key of a row's random numbers: its index, or for a sampler's objects the position.
  uint64_t key(const Ticket& ticket, uint32_t row) const {
    return key_in(indices_, row, ticket, ticket.begin + row);
  }

  // The samples that may replace the sample of one row, in the order in which they are tried.
  class Replacements {
   public:
    // They are the other samples of the batch: a sampler listed them, and it may leave out other
    // samples of the epoch, which must not be used. False: all samples of the epoch.
    bool of_batch() const { return of_batch_; }
    uint64_t size() const { return size_; }
    // The index of the n-th, and its key. Null: it is the sample of the row itself, or an exception
    // is set.
    Owned at(uint32_t n, uint64_t& key) const;

   private:
    friend class TicketIndices;
    Replacements(const TicketIndices& indices, const Ticket& ticket, uint32_t row)
        : indices_(indices), ticket_(ticket), row_(row) {}

    const TicketIndices& indices_;
    const Ticket& ticket_;
    uint32_t row_;
    bool of_batch_ = false;
    uint64_t size_ = 0;
    Indices batch_;  // if of_batch()
  };
  // Valid until the next ticket. Nothing: a Python exception is set.
  std::optional<Replacements> replacements(Slot& slot, uint32_t row) const;

 private:
  uint64_t key_in(const Indices& indices, uint32_t at, const Ticket& ticket, uint32_t row) const;

  Order order_;
  bool covers_;
  Indices indices_;
};

}  // namespace penstock::python
