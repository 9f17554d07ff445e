#pragma once

#include <string>
#include <vector>

#include "penstock/pipeline/node.h"

namespace penstock {

// Element i is the i-th of every input side by side: a dict by the inputs' names, or without names
// a tuple. Leaves are called "name/leaf" ("0/leaf"), and just "name" where an input's element is
// one value. As long as the shortest input. State, if one of them is a stream: {"inputs": a state
// of each}; an element with a part that failed is one that failed.
class ZipNode : public Node {
 public:
  // `names`: none, or one for each input. Error kInvalidArgument: there are no inputs, or another
  // number of names, or a name comes twice.
  explicit ZipNode(std::vector<Ref> inputs, std::vector<std::string> names = {});

  std::string title() const override;
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  std::vector<std::string> names_;
};

// The stage, for others that put elements side by side.
IndexedRef zipped(std::vector<IndexedRef> inputs, std::vector<std::string> names);

}  // namespace penstock
