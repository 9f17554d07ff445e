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

// The batches of each round of towers, whichever way they are fed. Round r gives tower t
//   in turns:  batch r * towers + t of the feed. The last round of a pass has as many as are left;
//   by feeds:  batch r of its own feed. One that has ended has no part in the rounds after that;
//   by parts:  its part of batch r.
// No batch is left out, and no round has batches of two passes.
//
// A Loader begins an epoch with each pass, as Loader::epoch() says. Feeds must live while this is
// used. Threads: one at a time, which is the feed's then.
class Rounds {
 public:
  // The next batch of a pass; empty once at its end: the call after that begins the next one. A
  // pass without a batch ends all.
  using Next = std::function<std::optional<Example>()>;
  // Of one round, by towers; empty: that tower has no part in it.
  using Batches = std::vector<std::optional<Example>>;

  // In turns.
  explicit Rounds(Next feed);
  Rounds(Loader& feed);  // NOLINT: towers.run(feed, ...)
  // By feeds, one for each tower.
  Rounds(Feeds& feeds);  // NOLINT
  static Rounds feeds(std::vector<Next> feeds);
  static Rounds feeds(std::span<Loader> feeds);
  // By parts: the feed is a Dataset's that ends with split_batch(towers); part t's leaves get back
  // the names they had before it.
  static Rounds parts(Loader& feed);

  // At most so many passes from here on; UINT64_MAX: for ever. Error kInvalidArgument: there are
  // feeds, and not one for each tower.
  void begin(size_t towers, uint64_t passes);
  // The next round; empty: there is none. Errors: the feed's; kInvalidArgument: a batch that has
  // not one part for each tower.
  std::optional<Batches> next();

 private:
  enum class Deal : uint8_t { kTurns, kFeeds, kParts };
  struct Source {
    std::function<void()> begin;  // a pass; may be empty
    Next next;
    bool ended = false;  // in this pass; not asked again: that might begin another
  };
  Rounds(Deal deal, std::vector<Source> sources);
  static Source source_of(Loader& feed);
  static std::optional<Example> take(Source& source);
  Batches take_round();

  Deal deal_;
  std::vector<Source> sources_;
  size_t towers_ = 0;
  uint64_t passes_ = 0;  // that may still begin
  bool in_pass_ = false;
  bool fresh_ = false;  // nothing came of this pass yet
};

}  // namespace penstock::train
