#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// Where a Loader stands: exact, small, the same whatever was prefetched. Restores with any number
// of workers and (ordered feeds) at another world size. The JSON is the dict of state() of Python's
// Dataset.
struct LoaderState {
  static constexpr uint64_t kVersion = 1;

  uint64_t epoch = 0;
  uint64_t batches = 0;         // of this epoch, delivered by all ranks together
  std::vector<uint64_t> ahead;  // further ones that an unordered feed delivered already
  // The plan that it belongs to: its seed, elements of an epoch, and the titles of its stages, from
  // the source upward. No titles: of Python's Loader over samples.
  uint64_t seed = 0;
  uint64_t length = 0;
  std::vector<std::string> plan;
  // If it has a shard: among how many ranks, and where in the epoch these began (see Plan::world).
  uint32_t world = 1;
  uint64_t base = 0;
  // If it has a stream: where that is, as JSON; empty: at the epoch's front.
  std::string stream;

  std::string to_json() const;
  // Error kInvalidArgument: no such state, or of another version.
  static LoaderState from_json(std::string_view text);

  friend bool operator==(const LoaderState&, const LoaderState&) = default;
};

}  // namespace penstock
