#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// A Loader's place. Exact, small, and independent of prefetched batches. Restores with any number
// of workers and (ordered feeds) at another world size. Its JSON is the dict that state() of
// Python's Loader returns.
struct LoaderState {
  static constexpr uint64_t kVersion = 1;

  uint64_t epoch = 0;
  uint64_t batches = 0;         // of this epoch, delivered by all ranks together
  std::vector<uint64_t> ahead;  // further batches that an unordered feed delivered already
  // The plan: its seed, the number of elements in an epoch, and the titles of its stages, from the
  // source upward.
  uint64_t seed = 0;
  uint64_t length = 0;
  std::vector<std::string> plan;
  // For a plan with a shard: the number of ranks, and where in the epoch these began (see
  // Plan::world).
  uint32_t world = 1;
  uint64_t base = 0;
  // For a plan with a stream: its place as JSON; empty: the epoch's start.
  std::string stream;

  std::string to_json() const;
  // Error kInvalidArgument: not a state, or one of another version.
  static LoaderState from_json(std::string_view text);

  friend bool operator==(const LoaderState&, const LoaderState&) = default;
};

}  // namespace penstock
