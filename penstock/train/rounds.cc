#include "penstock/train/rounds.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/api/feeds.h"
#include "penstock/pipeline/api/loader.h"

namespace penstock::train {
namespace {

// Splits a batch by its leaves' names: "0/x", "1/x", or without a name "0", "1".
Rounds::Batches parts_of(const Example& batch, size_t towers) {
  Rounds::Batches parts(towers);
  for (const auto& [name, tensor] : batch) {
    size_t part = towers;
    const char* end = name.data() + name.size();
    const auto [stopped, error] = std::from_chars(name.data(), end, part);
    if (error != std::errc() || part >= towers || (stopped != end && *stopped != '/')) {
      throw Error(Code::kInvalidArgument, "Towers",
                  "a batch has '" + name + "', which belongs to no part 0 to " +
                      std::to_string(towers - 1) + "; end the Dataset with split_batch(" +
                      std::to_string(towers) + ")");
    }
    if (!parts[part]) parts[part].emplace();
    parts[part]->set(stopped == end ? std::string() : std::string(stopped + 1, end), tensor);
  }
  const auto missing = std::find(parts.begin(), parts.end(), std::nullopt);
  if (missing != parts.end()) {
    throw Error(Code::kInvalidArgument, "Towers",
                "a batch has no part " + std::to_string(missing - parts.begin()) +
                    "; end the Dataset with split_batch(" + std::to_string(towers) + ")");
  }
  return parts;
}

}  // namespace

Rounds::Rounds(Deal deal, std::vector<Source> sources)
    : deal_(deal), sources_(std::move(sources)) {}

Rounds::Rounds(Next feed) : deal_(Deal::kTurns) { sources_.push_back({{}, std::move(feed)}); }
Rounds::Rounds(Loader& feed) : Rounds(Deal::kTurns, {source_of(feed)}) {}
Rounds Rounds::parts(Loader& feed) { return Rounds(Deal::kParts, {source_of(feed)}); }

Rounds::Rounds(Feeds& feeds) : deal_(Deal::kFeeds) {
  for (uint32_t number = 0; number < feeds.size(); ++number) {
    Feeds::Feed* feed = &feeds[number];
    sources_.push_back({[feed] { feed->begin(); }, [feed] { return feed->next(); }});
  }
}

Rounds Rounds::feeds(std::vector<Next> feeds) {
  std::vector<Source> sources;
  for (Next& next : feeds) sources.push_back({{}, std::move(next)});
  return Rounds(Deal::kFeeds, std::move(sources));
}

Rounds Rounds::feeds(std::span<Loader> feeds) {
  std::vector<Source> sources;
  for (Loader& feed : feeds) sources.push_back(source_of(feed));
  return Rounds(Deal::kFeeds, std::move(sources));
}

Rounds::Source Rounds::source_of(Loader& feed) {
  struct Pass {
    std::optional<Loader::Batches> batches;
    Loader::Batches::iterator at;
    bool begun = false;
  };
  const auto pass = std::make_shared<Pass>();
  return {[pass, &feed] {
            pass->batches.emplace(feed.epoch());
            pass->begun = false;
          },
          [pass]() -> std::optional<Example> {
            if (std::exchange(pass->begun, true)) {
              ++pass->at;
            } else {
              pass->at = pass->batches->begin();
            }
            if (pass->at == pass->batches->end()) return std::nullopt;
            return std::move(*pass->at);
          }};
}

void Rounds::begin(size_t towers, uint64_t passes) {
  if (deal_ == Deal::kFeeds && sources_.size() != towers) {
    throw Error(Code::kInvalidArgument, "Towers",
                "there are " + std::to_string(sources_.size()) + " feeds for " +
                    std::to_string(towers) + " towers; give one for each");
  }
  towers_ = towers;
  passes_ = passes;
  in_pass_ = false;
}

std::optional<Rounds::Batches> Rounds::next() {
  while (true) {
    if (!in_pass_) {
      if (passes_ == 0) return std::nullopt;
      if (passes_ != UINT64_MAX) --passes_;
      for (Source& source : sources_) {
        if (source.begin) source.begin();
        source.ended = false;
      }
      in_pass_ = fresh_ = true;
    }
    Batches batches = take_round();
    if (std::any_of(batches.begin(), batches.end(), [](const auto& b) { return b.has_value(); })) {
      fresh_ = false;
      return batches;
    }
    in_pass_ = false;
    if (fresh_) passes_ = 0;  // the feed has no second pass
  }
}

std::optional<Example> Rounds::take(Source& source) {
  if (source.ended) return std::nullopt;
  std::optional<Example> batch = source.next();
  source.ended = !batch;
  return batch;
}

Rounds::Batches Rounds::take_round() {
  Batches batches(towers_);
  if (deal_ == Deal::kParts) {
    const std::optional<Example> batch = take(sources_[0]);
    return batch ? parts_of(*batch, towers_) : batches;
  }
  for (size_t tower = 0; tower < towers_; ++tower) {
    batches[tower] = take(sources_[deal_ == Deal::kFeeds ? tower : 0]);
  }
  return batches;
}

}  // namespace penstock::train
