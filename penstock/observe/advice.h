#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/observe/analysis.h"

namespace penstock {

// Internal to analysis and advice. Any thread.

// Appends recommendations to `analysis.recommendations`, most useful first. All other fields of the
// analysis must be set.
void recommend(const Snapshot& snapshot, Analysis& analysis);

// True if there is advice on how to avoid copies of this kind. The other kinds are expected.
bool avoidable(CopyReason reason);

// What the verdict and the advice derive from a run, and how they print figures.

inline constexpr double kNegligibleShare = 0.05;  // of time

// The cost of claiming a ticket, finishing it and taking its batch. If a batch takes less work than
// this, no number of workers makes up for the cost.
inline constexpr double kHandOverCostMs = 0.01;

// 0 if `whole` is 0.
double ratio(double part, double whole);

// "12 %", "0.4 %"
std::string percent(double share);

// "1 worker", "2 workers"
std::string plural(uint64_t n, const std::string& word);

bool is_inline(const Snapshot& snapshot);

// The queue is shorter than the number of workers, so some workers are always idle.
bool short_queue(const Snapshot& snapshot);

// Batches of the mean size so far that fit into max_bytes at a time; 0: unknown.
uint64_t batches_in_budget(const Snapshot& snapshot);

// max_bytes holds fewer batches than there are workers, each of which makes one.
bool budget_below_workers(const Snapshot& snapshot);

// The stage that takes most time; nullptr: unknown.
const StageTime* slowest(const std::vector<StageTime>& stages);

// The slowest stage of a run without workers; it belongs to the stream if it is in `a.stream`.
const StageTime* slowest_inline(const Analysis& a);

}  // namespace penstock
