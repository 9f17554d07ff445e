#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "penstock/pipeline/stages/stage.h"

namespace penstock {

class Builder;

// What a node becomes: either an indexed stage, or a stream, which a cursor goes through, and an
// indexed tail, which tickets apply to the elements that the cursor hands out.
struct Built {
  IndexedRef indexed = nullptr;
  StreamedRef stream = nullptr;
  IndexedRef tail = nullptr;   // never null beside `stream`
  uint64_t per_output = 1;     // elements of the stream that one element of the tail takes
  bool whole_outputs = false;  // what is left at the end and is fewer is left out
  bool may_fail = false;       // the tail has a function, which may fail for an element
  bool leaves_out = false;     // and an on_error, which leaves such an element out

  // Of a stage that makes each element of one element: `stage` on top of what is there.
  Built with(const std::function<IndexedRef(IndexedRef)>& stage) const;
  // Of a stage that makes each element of `n`.
  Built stacked(Builder& builder, uint64_t n, bool whole,
                const std::function<IndexedRef(IndexedRef)>& stage) const;
  static Built of(StreamedRef stream);
};

// What becomes of an element of a stream that fails: the next on_error behind its stage says so, or
// else the feed.
struct FailurePolicy {
  bool skip = false;        // the element is left out; else its failure is raised
  bool feed_skips = false;  // what no on_error decides
  bool sure = false;    // it is so whatever a stage keeps of the elements, and for whatever feed
  bool by_feed = true;  // no on_error says so
};

// A source or transformation as the user wrote it. Immutable: any thread.
class Node {
 public:
  using Ref = std::shared_ptr<const Node>;

  // Error kInvalidArgument: an input is null, as that of a Dataset that was moved from.
  explicit Node(std::vector<Ref> inputs = {});
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // "shuffle(seed=7)": in messages, reports and states. Plans with equal titles, stage by stage,
  // give equal elements.
  virtual std::string title() const = 0;
  // The same, and what else decides which elements these are: what a cache's file is known by.
  virtual std::string identity() const { return title(); }
  // `inputs`: what the node's inputs became. Error kInvalidArgument in the user's terms, kNotFound,
  // kDataLoss, ...
  virtual Built build(std::vector<Built> inputs, Builder& builder) const = 0;

  // What becomes of elements that fail in front of this, by what does of those that fail here.
  virtual FailurePolicy policy_before(const FailurePolicy& here) const { return here; }
  // Whether build() takes inputs that are streams.
  virtual bool takes_streams() const { return false; }
  // Where it does not: what to do, behind "... one after the other".
  virtual std::string instead_of_streams() const { return {}; }

  const std::vector<Ref>& inputs() const { return inputs_; }

 private:
  std::vector<Ref> inputs_;
};

}  // namespace penstock
