#pragma once

#include <map>
#include <optional>
#include <string>

#include "penstock/pipeline/api/loader.h"

namespace penstock {

// Several Loaders by names, each with a place of its own: switching between them costs nothing, for
// all of them go on making their batches ahead.
//
//   penstock::Feedable feeds;
//   feeds.add("train", train.build({.workers = 6}));
//   feeds.add("validation", validation.build({.workers = 2}));
//   for (int step = 0; step < 10'000; ++step) {
//     learn(*feeds.next("train"));
//     if (step % 1000 != 999) continue;
//     feeds.reset("validation");
//     while (auto batch = feeds.next("validation")) evaluate(*batch);
//   }
//
// Each Loader has a budget and workers of its own, and whoever takes by a name from what were to be
// like batches sees to it that they are.
//
// Errors: kNotFound for a name that there is none of; the Loaders' own.
//
// Threads. As a Loader: close() may be called from any, everything else from one at a time.
class Feedable {
 public:
  // Error kInvalidArgument: there is one of that name.
  void add(const std::string& name, Loader loader);

  // Its next batch; empty once at the end of its pass. The call after that is in its next one.
  std::optional<Example> next(const std::string& name) { return (*this)[name].next(); }
  // Its next pass begins: nothing more is given of the one it is in.
  void reset(const std::string& name);
  // Another one in its place, whose first pass begins. The one that was there is closed.
  void reset(const std::string& name, Loader loader);

  Loader& operator[](const std::string& name);

  // All places, as JSON: an object of the Loaders' states.
  std::string state() const;
  // Error kInvalidArgument: it has other names, or is of other plans. Nothing was changed then.
  void restore(const std::string& state);

  // Ends all workers. Batches that are held stay valid.
  void close();

 private:
  std::map<std::string, Loader> loaders_;
};

}  // namespace penstock
