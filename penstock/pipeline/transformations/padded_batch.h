#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/pipeline/node.h"
#include "penstock/pipeline/stages/collate.h"

namespace penstock {

// n elements stacked, each filled up at the end of every axis to the longest of its batch, or to a
// given length, with zeros or a given value. Strings become rows of uint8. The last batch of an
// epoch is short, or left out.
class PaddedBatchNode : public Node {
 public:
  // `fields`: those that are not just filled up with zeros to the longest. Error kInvalidArgument:
  // n is 0, or above 2^32 - 1; a field comes twice, or its name is not UTF-8. When it is built, or,
  // where what elements are is not known then, of each batch: there is no such field, its axes are
  // others, its dtype does not have the value. An element longer than the length that is given is
  // an error of its batch.
  PaddedBatchNode(Ref input, uint64_t n, bool drop_last, std::vector<Padding::Field> fields = {});

  uint64_t batch_size() const { return n_; }
  std::string title() const override;
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  uint64_t n_;
  bool drop_;
  Padding padding_;
};

}  // namespace penstock
