#include <utility>

#include "penstock/base/bijection.h"
#include "penstock/base/error.h"
#include "penstock/base/random.h"
#include "penstock/pipeline/stages/index_mapped.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
namespace {

class Shuffle : public IndexMapped {
 public:
  Shuffle(IndexedRef input, uint64_t seed, bool reshuffle)
      : IndexMapped(std::move(input)), seed_(seed), reshuffle_(reshuffle) {}

  uint64_t length(uint64_t base) const override { return input()->length(base); }

  uint32_t map(At& at, std::span<uint64_t> positions) const override {
    return permute(permutation(epoch_of(at), input()->length(at.base)), positions);
  }

  std::unique_ptr<IndexedReader> reader(Context& context) const override {
    auto map = [this, order = Order()](At& at, std::span<uint64_t> positions) mutable {
      return this->map(at, positions, order);
    };
    return mapped_reader(std::move(map), input()->open(context));
  }

 private:
  // An epoch's permutation. Cached, since creating one costs as much as applying it to a chunk.
  struct Order {
    uint64_t epoch = 0;
    Bijection positions{0, 0};
  };

  uint32_t map(At& at, std::span<uint64_t> positions, Order& order) const {
    const uint64_t epoch = epoch_of(at);
    const uint64_t length = input()->length(at.base);
    if (order.epoch != epoch || order.positions.length() != length) {
      order = {epoch, permutation(epoch, length)};
    }
    return permute(order.positions, positions);
  }

  uint64_t epoch_of(const At& at) const { return reshuffle_ ? at.epoch : 0; }
  Bijection permutation(uint64_t epoch, uint64_t length) const {
    return Bijection(length, derive_key(seed_, epoch, KeyUse::kOrder));
  }
  static uint32_t permute(const Bijection& order, std::span<uint64_t> positions) {
    const uint64_t first = positions[0];
    bool run = true;
    for (size_t i = 0; i < positions.size(); ++i) run &= positions[i] == first + i;
    if (run) {
      order.map(first, positions.size(), positions.data());
    } else {
      for (uint64_t& position : positions) position = order(position);
    }
    return static_cast<uint32_t>(positions.size());
  }

  uint64_t seed_;
  bool reshuffle_;
};

}  // namespace

Node::Ref nodes::shuffle(Node::Ref input, uint64_t seed, bool reshuffle) {
  return make_node({
      .title = "shuffle(seed=" + std::to_string(seed) + (reshuffle ? ")" : ", reshuffle=false)"),
      .inputs = {std::move(input)},
      .build = [=](std::vector<Built> inputs, Builder&) -> Built {
        const uint64_t length = inputs[0].indexed->length(0);
        if (length == kEndless) {
          throw Error(Code::kInvalidArgument, "shuffle",
                      "what has no end, or 2^64 - 1 elements, is too long to be shuffled as a "
                      "whole: where it is repeated, shuffle first, then repeat");
        }
        if (length > Bijection::kMaxLength) {
          throw Error(Code::kInvalidArgument, "shuffle",
                      "it is too long to be shuffled: " + std::to_string(length) +
                          " elements are more than 2^62");
        }
        return {std::make_shared<Shuffle>(inputs[0].indexed, seed, reshuffle)};
      },
      .refuses_streams = ": give shuffle a buffer",
  });
}

}  // namespace penstock
