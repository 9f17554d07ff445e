#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "penstock/memory/example.h"
#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/node.h"
#include "penstock/pipeline/stages/context.h"

namespace penstock {

// The plan that an element is the beginning of. The element's tensors are views that are good until
// it returns. It is called by one thread at a time, again for the same element after a restore, and
// must give the same then. What it throws is the element's failure.
using Opening = std::function<Node::Ref(const Example& element)>;

// The same in whatever language. Immutable: any thread.
class Opener {
 public:
  struct Opened {
    Node::Ref plan = nullptr;
    std::optional<Failure> failure = std::nullopt;  // instead of a plan
  };
  virtual ~Opener() = default;
  virtual bool python() const { return false; }
  // Of row `row` of `in`, whose address is the only one in `keys`.
  virtual Opened open(const Keys& keys, const Chunk& in, uint32_t row, Context& context) const = 0;
};

// tf.data's interleave: `cycle` plans that were opened from the input's elements are open at a time
// and give `block` elements each in turn; one that ends makes room for the next. A stream; state:
// the input's, and of every open plan the state of the element that it was opened from, and its
// own.
class InterleaveStreamNode : public Node {
 public:
  // `name`: of the function, in titles. Error kInvalidArgument: cycle or block is 0, or cycle above
  // 65,536.
  InterleaveStreamNode(Ref input, std::string name, Opening open, uint64_t cycle, uint64_t block);
  InterleaveStreamNode(Ref input, std::string name, std::shared_ptr<const Opener> open,
                       uint64_t cycle, uint64_t block);

  std::string title() const override;
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  std::string name_;
  std::shared_ptr<const Opener> open_;
  uint64_t cycle_, block_;
};

// All elements of the plan of the first element, then all of the second's, ... A stream.
class FlatMapNode : public Node {
 public:
  FlatMapNode(Ref input, std::string name, Opening open);
  FlatMapNode(Ref input, std::string name, std::shared_ptr<const Opener> open)
      : Node({std::move(input)}),
        name_(name_of_user(std::move(name), "flat_map")),
        open_(std::move(open)) {}

  std::string title() const override { return "flat_map(" + name_ + ")"; }
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  std::string name_;
  std::shared_ptr<const Opener> open_;
};

}  // namespace penstock
