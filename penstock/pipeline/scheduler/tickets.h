#pragma once

#include <cstdint>
#include <optional>

#include "penstock/workers/ticket_ring_layout.h"

namespace penstock {

// The consumer's place: the next undelivered ticket.
struct Position {
  uint64_t epoch = 0;
  uint64_t base = 0;  // global batches of this epoch that earlier runs took (another world size)
  uint64_t step = 0;  // this rank's batches since then
  friend bool operator==(const Position&, const Position&) = default;
};

// The tickets of a plan, for the scheduler. Called on the consumer's thread only.
class Tickets {
 public:
  virtual ~Tickets() = default;
  // Number of steps of an epoch, counted from `base`; nullopt: only known after the epoch ran (a
  // stream).
  virtual std::optional<uint64_t> steps(uint64_t epoch, uint64_t base) = 0;
  enum class Described : uint8_t {
    kPosted,
    kEnd,     // the epoch ends before this ticket (only if steps() is nullopt)
    kNotYet,  // not known yet: ask again after ready() is true
    // The ticket cannot be made. poll() returns kFailed when the position is at the ticket.
    kFailed,
  };
  // Fills in rows, owner, stream and explicit indices of the ticket at `at`.
  virtual Described describe(const Position& at, BatchEntry& entry) = 0;
  // After kNotYet: whether describe() may return something else now. The thread that makes this
  // true calls TicketRing::nudge_consumer().
  virtual bool ready() { return true; }
  // The number of streams that must end for the epoch to end; 0: steps() knows the end.
  virtual uint32_t streams() const { return 0; }
  // Whether several workers may make one batch, as far as is known.
  virtual bool divisible() const { return false; }
  // An upper bound on the arena bytes that a ticket uses beside its batch, as far as is known.
  virtual uint64_t input_bytes() const { return 0; }
  // An upper bound on the bytes that a worker uses beside a batch of `batch_bytes` while making it.
  virtual uint64_t work_bytes([[maybe_unused]] uint64_t batch_bytes) const { return 0; }
  // The bytes of delivered batches that still count.
  virtual uint64_t kept_bytes() const { return 0; }
};

}  // namespace penstock
