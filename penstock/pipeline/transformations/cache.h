#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "penstock/pipeline/cache/kept_rows.h"
#include "penstock/pipeline/node.h"

namespace penstock {

// Every element is kept when it is first made, and from then on comes from memory: for all threads
// and processes that run what was built, and as long as that is there. What is below is made as in
// epoch 0, so that an element does not depend on when it was first asked for; what fails is not
// kept. What finds no room in `max_bytes` is made again each time.
//
// In a file elements outlive all of that: it appears when every element is there, and whoever
// builds the same chain with the same seed then takes them from it and makes none. A SnapshotNode
// reads it, too.
//
// Of a stream, elements are kept in their order as it is first gone through; later passes go
// through it only for what was not kept. Its state is {"index"}: where what is in front of it is
// not kept, a restore goes through that again.
class CacheNode : public Node {
 public:
  // 0: a quarter of the memory that may be used. Error kInvalidArgument: below
  // CacheStore::kLeastBytes.
  CacheNode(Ref input, uint64_t max_bytes);
  // In a file. Error kInvalidArgument: an empty path. Building it fails with the errors of
  // SnapshotStore.
  CacheNode(Ref input, std::string path);

  std::string title() const override { return "cache()"; }
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }
  // What is left out because of an on_error behind this may be there for another feed of the cache.
  FailurePolicy policy_before(const FailurePolicy& here) const override {
    return {here.skip, here.feed_skips, false, here.by_feed};
  }

 private:
  Keeping keeping(std::optional<uint64_t> positions, bool attached) const;

  uint64_t max_bytes_ = 0;
  std::string path_;  // "": in memory
};

// What it becomes on a stream.
StreamedRef cached_stream(StreamedRef input, Keeping keeping);

}  // namespace penstock
