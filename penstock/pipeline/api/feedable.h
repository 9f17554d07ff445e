#pragma once

#include <map>
#include <optional>
#include <string>

#include "penstock/pipeline/api/loader.h"

namespace penstock {

// Several named Loaders, each with its own place. Switching between them is free, since all of them
// continue to make batches ahead.
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
// Each Loader has its own budget and workers. Feedable does not check that their batches have the
// same schema.
//
// Errors: kNotFound: no Loader of this name; the Loaders' own.
//
// Threads: as for Loader: close() may be called from any, everything else from one at a time.
class Feedable {
 public:
  // Error kInvalidArgument: the name is used already.
  void add(const std::string& name, Loader loader);

  // The Loader's next batch; empty once at the end of its pass. The next call begins its next pass.
  std::optional<Example> next(const std::string& name) { return (*this)[name].next(); }
  // Begins the Loader's next pass and drops the rest of the current one.
  void reset(const std::string& name);
  // Replaces the Loader and closes the old one. The new one begins its first pass.
  void reset(const std::string& name, Loader loader);

  Loader& operator[](const std::string& name);

  // All places as JSON: an object of the Loaders' states.
  std::string state() const;
  // Error kInvalidArgument: the state has other names, or is of other plans. Then nothing has
  // changed.
  void restore(const std::string& state);

  // Ends all workers. Batches that the user holds stay valid.
  void close();

 private:
  std::map<std::string, Loader> loaders_;
};

}  // namespace penstock
