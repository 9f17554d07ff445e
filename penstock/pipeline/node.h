#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/pipeline/stages/stage.h"

namespace penstock {

class Builder;

// The result of building a node. Either an indexed stage; or a stream, which the stream reader
// reads, with an indexed tail, which tickets apply to the stream's elements.
struct Built {
  IndexedRef indexed = nullptr;
  StreamedRef stream = nullptr;
  IndexedRef tail = nullptr;   // never null beside `stream`
  uint64_t per_output = 1;     // stream elements per element of the tail
  bool whole_outputs = false;  // fewer than per_output elements at the end are dropped
  bool may_fail = false;       // the tail has a function, which may fail for an element
  bool leaves_out = false;     // the tail may fail, and has an on_error that skips such an element

  // For a stage that makes each element of one input element: puts `stage` on top.
  Built with(const std::function<IndexedRef(IndexedRef)>& stage) const;
  // For a stage that makes each element of `n` input elements.
  Built stacked(Builder& builder, uint64_t n, bool whole,
                const std::function<IndexedRef(IndexedRef)>& stage) const;
  static Built of(StreamedRef stream);
};

// The handling of failed elements of a stream. The next on_error after the failing stage decides
// it, or else the feed.
struct FailurePolicy {
  bool skip = false;        // failed elements are skipped; else the exception is raised
  bool feed_skips = false;  // the feed skips failures that no on_error decides
  // An on_error decides, with no cache between the failing stage and it: the decision is the same
  // for every feed.
  bool sure = false;
  bool by_feed = true;  // no on_error decides
};

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
  uint64_t elements_each = 0;
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
Node::Ref make_node(Node node);

}  // namespace penstock
