#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/streams/stream_input.h"
#include "penstock/pipeline/streams/streams.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
namespace {

class Shard : public IndexMapped {
 public:
  Shard(IndexedRef input, uint32_t rank, uint32_t world, Remainder remainder)
      : IndexMapped(std::move(input)), rank_(rank), world_(world), remainder_(remainder) {}

  uint64_t length(uint64_t base) const override {
    const uint64_t all = input()->length(0);
    if (all == kEndless) return all;
    const uint64_t left = all - std::min(base, all);
    const uint64_t over = left % world_;
    switch (remainder_) {
      case Remainder::kKeep:
        return left / world_ + (rank_ < over);
      case Remainder::kDrop:
        return left / world_;
      case Remainder::kPad:
        return left / world_ + (over != 0);
    }
    return 0;
  }

  uint32_t map(At& at, std::span<uint64_t> positions) const override {
    for (uint64_t& position : positions) position = at.base + position * world_ + rank_;
    at.base = 0;
    if (remainder_ == Remainder::kPad) {
      const uint64_t all = input()->length(0);
      for (uint64_t& position : positions) {
        if (position >= all) position %= all;
      }
    }
    return static_cast<uint32_t>(positions.size());
  }

 private:
  uint64_t rank_, world_;
  Remainder remainder_;
};

class ShardStream : public StreamMapped {
 public:
  ShardStream(StreamedRef input, uint32_t rank, uint32_t world)
      : StreamMapped(std::move(input)), rank_(rank), world_(world) {}

  std::optional<uint64_t> length() const override {
    auto all = input()->length();
    if (!all || *all == kEndless) return all;
    return *all / world_ + (rank_ < *all % world_);
  }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public ElementReader {
   public:
    Reader(const ShardStream& stage, Context& context)
        : stage_(stage), input_(*stage.input(), context) {}

    void begin(uint64_t epoch) override { input_.begin(epoch); }
    uint32_t next(uint32_t most, Chunk& out) override {
      picked_.forget();  // left by a call that threw
      while (input_.more()) {
        while (input_.left() > 0 && picked_.size() < most) {
          if ((input_.ordinal() + input_.row()) % stage_.world_ == stage_.rank_) {
            picked_.add(input_);
          } else {
            input_.use();
          }
        }
        if (picked_.size() > 0) return picked_.give(input_.spec(), out);
      }
      return 0;
    }
    void release() override { picked_.forget(); }
    State save() const override {
      return {{"rank", stage_.rank_}, {"world", stage_.world_}, {"input", input_.save()}};
    }
    void load(uint64_t epoch, const State& state) override {
      if (count_in(state, "rank") != stage_.rank_ || count_in(state, "world") != stage_.world_) {
        throw Error(Code::kInvalidArgument, "restore",
                    "a stream's state is for the rank and world that it was taken at");
      }
      input_.load(epoch, member_of(state, "input"));
    }

   private:
    const ShardStream& stage_;
    StreamInput input_;
    PickedRows picked_;
  };

  uint64_t rank_, world_;
};

std::string title_of(Remainder remainder) {
  switch (remainder) {
    case Remainder::kKeep:
      break;
    case Remainder::kDrop:
      return "shard(drop)";
    case Remainder::kPad:
      return "shard(pad)";
  }
  return "shard()";
}

}  // namespace

Node::Ref nodes::shard(Node::Ref input, uint32_t rank, uint32_t world, Remainder remainder) {
  if (world == 0) throw Error(Code::kInvalidArgument, "shard", "world is 0; give 1 or more");
  if (rank >= world) {
    throw Error(Code::kInvalidArgument, "shard",
                "rank is " + std::to_string(rank) + ", which must be below world, " +
                    std::to_string(world));
  }
  const std::string title = title_of(remainder);
  return make_node({
      .title = title,
      .inputs = {std::move(input)},
      .build = [=](std::vector<Built> inputs, Builder& builder) -> Built {
        if (inputs[0].stream != nullptr) {
          if (remainder != Remainder::kKeep) {
            throw Error(Code::kInvalidArgument, title,
                        "elements that only come one after the other are dealt out as they come: "
                        "what remains can be neither dropped nor padded");
          }
          builder.set_sharded({world, nullptr});
          return Built::of(
              std::make_shared<ShardStream>(builder.as_stream(inputs[0]), rank, world));
        }
        builder.set_sharded({world, inputs[0].indexed});
        return {std::make_shared<Shard>(inputs[0].indexed, rank, world, remainder)};
      },
      .identity = title + " of rank " + std::to_string(rank) + " of " + std::to_string(world),
      .inputs_per_element = 1,
      .deals_out = true,
  });
}

}  // namespace penstock
