#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/pipeline/dataset_options.h"
#include "penstock/pipeline/loader.h"
#include "penstock/pipeline/node.h"
#include "penstock/pipeline/op.h"

namespace penstock {

// A pipeline: a source and a chain of transformations, as docs/pipeline.md describes them. Nothing
// is read and nothing is checked beyond its arguments before it is built; what was built is fed by
// a Loader.
//
//   auto feed = penstock::Dataset::range(0, 1000).shuffle({.seed = 7}).batch(32).build();
//   while (auto batch = feed.next()) ...
//
// A value: cheap to copy, immutable, any thread. Every method gives a new Dataset; their errors are
// kInvalidArgument for arguments that cannot be.
class Dataset {
 public:
  explicit Dataset(Node::Ref node) : node_(std::move(node)) {}

  // ---- sources

  // begin, begin + step, ... short of end: int64 numbers under the name "".
  static Dataset range(int64_t begin, int64_t end, int64_t step = 1);
  static Dataset range(int64_t end) { return range(0, end); }

  // ---- transformations

  Dataset map(OpRef op) const;
  Dataset batch(uint64_t n, const BatchOptions& options = {}) const;
  // The pass again and again, shuffled anew each time. Without a count: for ever.
  Dataset repeat(std::optional<uint64_t> count = std::nullopt) const;
  // Batches that may be made ahead, at the end of a chain. Without a number: as many as help.
  Dataset prefetch(std::optional<uint32_t> batches = std::nullopt) const;

  // Error as the nodes find: kInvalidArgument, kNotFound, kDataLoss, kSystem.
  Loader build(const LoaderOptions& options = {}) const { return Loader(*this, options); }

  const Node::Ref& node() const { return node_; }

 private:
  Node::Ref node_;
};

}  // namespace penstock
