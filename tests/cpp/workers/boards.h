#pragma once

#include <gtest/gtest.h>

#include "penstock/workers/board.h"

namespace penstock::testing {

inline uint64_t post(Board& board, uint32_t granules = 1, uint32_t owner = kAnyWorker,
                     uint64_t epoch = 0) {
  Post& next = board.next_post();
  next.epoch = epoch;
  next.rows = granules;
  next.granules = granules;
  next.owner = owner;
  uint64_t seq = next.seq;
  board.publish(next);
  return seq;
}

inline UnitState state(Board& board, uint64_t seq, uint32_t granule = 0) {
  return Unit::state_of(board.unit_at(seq, granule).word.load());
}

inline void finish(Board& board, const Board::Claim& claim) {
  ASSERT_TRUE(board.begin_result(claim));
  board.finish(claim);
}

inline void drop(void*, const Board::Claim&) {}

}  // namespace penstock::testing
