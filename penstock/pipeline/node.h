#pragma once

#include <memory>
#include <string>
#include <vector>

#include "penstock/pipeline/stage.h"

namespace penstock {

class Builder;

// What a node becomes.
struct Built {
  IndexedRef indexed;
};

// A source or transformation as the user wrote it. Immutable: any thread.
class Node {
 public:
  using Ref = std::shared_ptr<const Node>;

  explicit Node(std::vector<Ref> inputs = {}) : inputs_(std::move(inputs)) {}
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // "shuffle(seed=7)": in messages, reports and states. Plans with equal titles, stage by stage,
  // give equal elements.
  virtual std::string title() const = 0;
  // `inputs`: what the node's inputs became. Error kInvalidArgument in the user's terms, kNotFound,
  // kDataLoss, ...
  virtual Built build(std::vector<Built> inputs, Builder& builder) const = 0;

  const std::vector<Ref>& inputs() const { return inputs_; }

 private:
  std::vector<Ref> inputs_;
};

}  // namespace penstock
