#pragma once

#include <cstdint>

namespace penstock {

// Where a leased block is, in the words that any process with the region mapped understands. This
// is what travels between processes instead of payload: trivially copyable, no padding.
//
// Every Ref stands for exactly one lease: make one Lease of it (see lease.h), or the block stays
// taken for as long as its region lives.
struct Ref {
  uint64_t offset = 0;      // of the block's header in the region; the data is Lease::data()
  uint64_t bytes = 0;       // of data, as asked for
  uint32_t generation = 0;  // of the block when it was shared; a reused block has another
  uint32_t reserved = 0;

  friend bool operator==(const Ref&, const Ref&) = default;
};
static_assert(sizeof(Ref) == 24);

}  // namespace penstock
