#pragma once

#include <cstdint>
#include <string>

#include "penstock/pipeline/node.h"

namespace penstock {

// n elements stacked, every leaf with one more axis in front. The last batch of an epoch is short,
// or left out. Strings and ragged features become ragged columns; other leaves whose shapes differ
// within a batch are an error that names two elements.
class BatchNode : public Node {
 public:
  // Error kInvalidArgument: n is 0, or above 2^32 - 1.
  BatchNode(Ref input, uint64_t n, bool drop_last);

  uint64_t batch_size() const { return n_; }
  std::string title() const override;
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  uint64_t n_;
  bool drop_;
};

// The stage: which elements are in which batch, for whoever stacks them in another way.
class Batch : public Collated {
 public:
  // Error kInvalidArgument, in the name of `operation`: n is 0, or above 2^32 - 1.
  static void check(uint64_t n, const std::string& operation);

  Batch(IndexedRef input, uint64_t n, bool drop_last)
      : Collated(std::move(input)), n_(n), drop_(drop_last) {}

  uint64_t length(uint64_t base) const override;
  uint64_t rows(uint64_t batch, uint64_t base) const override;
  uint64_t most_rows() const override { return n_; }
  uint64_t element(uint64_t batch, uint64_t row, uint64_t) const override {
    return batch * n_ + row;
  }

 private:
  uint64_t n_;
  bool drop_;
};

}  // namespace penstock
