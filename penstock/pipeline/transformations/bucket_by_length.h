#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/pipeline/element/padding.h"
#include "penstock/pipeline/node.h"

namespace penstock {

// tf.data's bucket_by_sequence_length: padded batches of elements of about one length. An element
// whose length is below boundaries[0] waits in bucket 0, ..., one at or above the last boundary in
// the last bucket; a bucket that is full is a batch. What waits at the end comes in the order of
// the buckets, as short batches, or is left out.
//
// A stream, whose elements are the batches. It copies what waits; state {"waiting": the ordinals in
// each bucket, "held": HeldBack's}.
class BucketByLengthNode : public Node {
 public:
  struct Options {
    std::string field;                  // whose first axis is the length
    std::vector<uint64_t> boundaries;   // ascending
    std::vector<uint64_t> batch_sizes;  // of each bucket, one more than boundaries
    bool drop_last = false;
    std::vector<Padding::Field> padding = {};  // as of PaddedBatchNode
  };
  // Error kInvalidArgument: boundaries that do not ascend, another number of batch sizes, one that
  // is 0, a name that is not UTF-8. When it is built, or where what elements are is not known then,
  // of each element: there is no such field, or it has no length.
  BucketByLengthNode(Ref input, Options options);

  std::string title() const override;
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  Options options_;
};

}  // namespace penstock
