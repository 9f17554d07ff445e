#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "penstock/memory/example.h"

namespace penstock {
class Feeds;
class Loader;
}  // namespace penstock

namespace penstock::train {

// The batches of each round of towers. Round r gives tower t:
//
// - in turns: batch r * towers + t of the feed; the last round of a pass has the remaining batches.
// - by feeds: batch r of the tower's own feed; a tower whose feed has ended has no batch.
// - by parts: the tower's part of batch r.
//
// No batch is left out, and no round has batches of two passes.
//
// A Loader begins an epoch with each pass, as Loader::epoch() does. REQUIRED: the feeds outlive
// this. Threads: one at a time, and the feeds are used by that thread.
class Rounds {
 public:
  // Returns the next batch of a pass; empty at its end, and the next call begins another pass. A
  // pass without a batch ends the run.
  using Next = std::function<std::optional<Example>()>;
  // The batches of one round, by tower; empty: the tower has no batch in it.
  using Batches = std::vector<std::optional<Example>>;

  // In turns.
  explicit Rounds(Next feed);
  Rounds(Loader& feed);  // NOLINT: towers.run(feed, ...)
  // By feeds, one for each tower.
  Rounds(Feeds& feeds);  // NOLINT
  static Rounds feeds(std::vector<Next> feeds);
  static Rounds feeds(std::span<Loader> feeds);
  // By parts: the feed's Dataset ends with split_batch(towers); the leaves of part t get their
  // original names.
  static Rounds parts(Loader& feed);

  // Begins a run of at most this many passes; UINT64_MAX: no limit. Error kInvalidArgument: the
  // number of feeds is not the number of towers.
  void begin(size_t towers, uint64_t passes);
  // The next round; empty: the run is over. Errors: the feed's; kInvalidArgument: a batch without
  // exactly one part for each tower.
  std::optional<Batches> next();

 private:
  enum class Deal : uint8_t { kTurns, kFeeds, kParts };
  struct Source {
    std::function<void()> begin;  // begins a pass; may be empty
    Next next;
    bool ended = false;  // in this pass; next() is not called again, as it might begin another pass
  };
  Rounds(Deal deal, std::vector<Source> sources);
  static Source source_of(Loader& feed);
  static std::optional<Example> take(Source& source);
  Batches take_round();

  Deal deal_;
  std::vector<Source> sources_;
  size_t towers_ = 0;
  uint64_t passes_ = 0;  // passes that may still begin
  bool in_pass_ = false;
  bool fresh_ = false;  // this pass has not given a batch yet
};

}  // namespace penstock::train
