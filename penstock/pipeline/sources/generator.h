#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "penstock/memory/example.h"
#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/node.h"

namespace penstock {

// A generator's next element; nothing: it is over. What it throws ends the stream at this place. It
// is called by one thread at a time. What its tensors are views of must stay as it is while they
// are: give copies of a buffer that is used again.
using Pull = std::function<std::optional<Example>()>;

// What a function of the user's gives, one after the other. A stream; state {"taken": elements}:
// loading one begins the epoch anew and goes through as many of them. So a pass must give the same
// each time that it is begun.
class GeneratorNode : public Node {
 public:
  using Begin = std::function<Pull(uint64_t epoch)>;

  // `name`: in titles, and so in states and errors.
  GeneratorNode(std::string name, Begin begin)
      : name_(name_of_user(std::move(name), "generator")),
        begin_(given(std::move(begin), "generator", "function")) {}

  std::string title() const override { return "generator(" + name_ + ")"; }
  Built build(std::vector<Built> inputs, Builder& builder) const override;

 private:
  std::string name_;
  Begin begin_;
};

}  // namespace penstock
