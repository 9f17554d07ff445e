#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "penstock/memory/example.h"
#include "penstock/pipeline/node.h"
#include "penstock/pipeline/stages/context.h"
#include "penstock/pipeline/streams/held_row.h"

namespace penstock {

// A function from what is carried and an element to what is carried on and another element. What it
// is given are read-only views that are good until it returns; its results may hand them on. It is
// called by one thread at a time. What it throws is the element's failure, and the carry stays.
using Scanning =
    std::function<std::pair<Example, Example>(const Example& carry, const Example& element)>;

// What scan does with an element, in whatever language. Immutable: any thread.
class Scanner {
 public:
  // At work for one reader. One thread.
  class Run {
   public:
    virtual ~Run() = default;
    // Makes row 0 of `next`, which is to be carried, and row `row` of `out` of row 0 of `carry` and
    // row `from` of `in`. What goes wrong is out.fail(row).
    virtual void step(const Keys& keys, const Chunk& carry, const Chunk& in, uint32_t from,
                      Chunk& next, Chunk& out, uint32_t row) = 0;
  };
  virtual ~Scanner() = default;
  virtual bool python() const { return false; }
  virtual std::unique_ptr<Run> bind(const std::string& stage, Context& context) const = 0;
};

// tf.data's scan: an epoch begins with `initial`. A stream; state {"carry": HeldRow's, "input"}.
class ScanNode : public Node {
 public:
  // `name`: of the function, in titles. Error kInvalidArgument: `initial` can be no element.
  ScanNode(Ref input, std::string name, const Example& initial, Scanning function);
  ScanNode(Ref input, std::string name, HeldRow initial, std::shared_ptr<const Scanner> scanner);

  std::string title() const override { return "scan(" + name_ + ")"; }
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  std::string name_;
  HeldRow initial_;
  std::shared_ptr<const Scanner> scanner_;
};

}  // namespace penstock
