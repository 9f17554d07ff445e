#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/stages/stage.h"

namespace penstock {

class Builder;

// A source or transformation as the user wrote it: its arguments, and a function that builds its
// stage. Made by make_node(). Immutable: any thread.
struct Node {
  using Ref = std::shared_ptr<const Node>;

  // "shuffle(seed=7)": for messages, reports and states. Plans whose stages have equal titles
  // produce equal elements.
  std::string title = {};
  std::vector<Ref> inputs = {};
  // `inputs`: the built inputs. Errors kInvalidArgument in the user's terms, kNotFound, kDataLoss,
  // ...
  std::function<Built(std::vector<Built> inputs, Builder& builder)> build = {};

  // Identifies the elements in a cache file, if the title alone does not. "": the title.
  std::string identity = {};
  // The policy for elements that fail in the inputs, given the policy for those that fail here.
  // Null: the same policy.
  std::function<FailurePolicy(const FailurePolicy& here)> policy_before = {};
  // If set, build() takes no streams. Text that says what to do instead, appended to the error "...
  // one after the other".
  std::optional<std::string> refuses_streams = {};

  // Every element is made of this many consecutive input elements; 0: not a fixed number.
  uint64_t inputs_per_element = 0;
  // Distributes its input's elements over the ranks.
  bool deals_out = false;
  // Its elements are batches whose samples a sampler lists in the ticket.
  bool listed = false;
  // If set for the outermost node, the feed does this instead of a stage, and build() is not
  // called.
  struct FeedPart {
    uint64_t rounds = 1;                 // epochs of the feed per pass of the user
    std::optional<uint32_t> queue = {};  // batches that are made ahead
  };
  std::optional<FeedPart> feed_part = {};
};

// Error kInvalidArgument: an input is null, such as that of a Dataset that was moved from.
inline Node::Ref make_node(Node node) {
  for (const Node::Ref& input : node.inputs) (void)given(input.get(), "Dataset", "dataset");
  return std::make_shared<const Node>(std::move(node));
}

}  // namespace penstock
