#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/observe/analysis.h"

namespace penstock {

// What the verdict and the advice have in common: limits, readings of a run, and how figures are
// written.

inline constexpr double kLittle = 0.05;  // a share of time that nobody should care about
// Claiming a ticket, finishing it and taking its batch cost microseconds: no worker makes up for
// that with less work than this.
inline constexpr double kHandedOverMs = 0.01;

// 0 where the whole is nothing.
double ratio(double part, double whole);

// "12 %", "0.4 %"
std::string percent(double share);
// "1 worker", "2 workers"
std::string plural(uint64_t n, const std::string& word);

bool in_line(const Snapshot& snapshot);
// Some workers always have nothing to do.
bool short_queue(const Snapshot& snapshot);
// Batches that max_bytes has room for at a time, at the mean size so far; 0: there is no telling.
uint64_t room_of(const Snapshot& snapshot);
// There is room for fewer batches than there are workers who make one each.
bool short_of_room(const Snapshot& snapshot);

// The stage that takes most; nullptr: there is no telling, or nothing to tell apart.
const StageTime* largest(const std::vector<StageTime>& stages);
// The stage that takes most of what is made in line; of a stream if it is in `a.stream`.
const StageTime* largest_in_line(const Analysis& a);

}  // namespace penstock
