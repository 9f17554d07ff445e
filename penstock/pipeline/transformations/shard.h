#pragma once

#include <cstdint>
#include <string>

#include "penstock/pipeline/node.h"

namespace penstock {

// What becomes of the elements that cannot be dealt out evenly.
enum class Remainder : uint8_t {
  kKeep,  // the first ranks have one more
  kDrop,  // nobody has them
  kPad,   // the others begin again at the front: positions modulo the length
};

// Every world-th element, from the rank-th on: element p is base + p * world + rank of the input,
// where base (At::base) is how many elements all ranks together used before this epoch was entered.
// Of a stream only the remainder that is kept is to be had, and a state, {"rank", "world",
// "input"}, is its rank's own.
class ShardNode : public Node {
 public:
  // Error kInvalidArgument: world is 0, or rank not below it.
  ShardNode(Ref input, uint32_t rank, uint32_t world, Remainder remainder = Remainder::kKeep);

  // Neither rank nor world is in it: a state restores at any other.
  std::string title() const override;
  std::string identity() const override;
  // Error kInvalidArgument: a remainder to be dropped or padded of a stream, whose end nobody
  // knows.
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  uint32_t rank_, world_;
  Remainder remainder_;
};

}  // namespace penstock
