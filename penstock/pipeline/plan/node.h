#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/pipeline/stages/built.h"

namespace penstock {

class Builder;

// A source or transformation as the user wrote it: data, and a function that builds its stage. Made
// by make_node(). Immutable: any thread.
struct Node {
  using Ref = std::shared_ptr<const Node>;

  // "shuffle(seed=7)": in messages, reports and states. Plans with equal titles, stage by stage,
  // give equal elements.
  std::string title = {};
  std::vector<Ref> inputs = {};
  // `inputs`: the built inputs. Error kInvalidArgument in the user's terms, kNotFound, kDataLoss,
  // ...
  std::function<Built(std::vector<Built> inputs, Builder& builder)> build = {};

  // Identifies the elements in a cache's file, where the title alone does not. "": the title.
  std::string identity = {};
  // The policy for elements that fail in the inputs, given the policy for those that fail here.
  // Null: the same policy.
  std::function<FailurePolicy(const FailurePolicy& here)> policy_before = {};
  // Set: build() takes no streams. Says what to do instead, behind "... one after the other".
  std::optional<std::string> refuses_streams = {};

  // Every element is made of this many consecutive elements of the input; 0: of another number.
  uint64_t elements_each = 0;
  // Deals its input's elements out to the ranks.
  bool deals_out = false;
  // Its elements are batches whose samples come with the ticket, from a sampler.
  bool listed = false;
  // As the outermost node: the feed does this, and build() is not called.
  struct FeedPart {
    uint64_t rounds = 1;                 // epochs of the feed in one pass of the user
    std::optional<uint32_t> queue = {};  // batches that are made ahead
  };
  std::optional<FeedPart> feed_part = {};
};

// Error kInvalidArgument: an input is null, as that of a Dataset that was moved from.
Node::Ref make_node(Node node);

}  // namespace penstock
