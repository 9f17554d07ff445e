#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "penstock/base/bijection.h"
#include "penstock/base/error.h"
#include "penstock/base/json.h"
#include "penstock/base/random.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/stages/stage.h"
#include "penstock/pipeline/streams/held_back.h"
#include "penstock/pipeline/streams/streams.h"
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

namespace {

class ShuffleBuffer : public StreamMapped {
 public:
  ShuffleBuffer(StreamedRef input, uint64_t seed, uint64_t buffer, bool reshuffle)
      : StreamMapped(std::move(input)), seed_(seed), buffer_(buffer), reshuffle_(reshuffle) {}

  std::optional<uint64_t> length() const override { return input()->length(); }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  // Draws a place; the last element moves into the gap.
  template <class T>
  static T draw(std::vector<T>& places, uint64_t key, uint64_t number) {
    std::swap(places[RandomStream({key, 0, number, 0}).below(places.size())], places.back());
    T drawn = std::move(places.back());
    places.pop_back();
    return drawn;
  }

  class Reader : public ElementReader {
   public:
    Reader(const ShuffleBuffer& stage, Context& context)
        : stage_(stage),
          context_(context),
          input_(*stage.input(), context, std::max<uint64_t>(64, stage.buffer_)) {}

    void begin(uint64_t epoch) override {
      clear(epoch);
      input_.begin(epoch);
    }

    uint32_t next(uint32_t most, Chunk& out) override {
      release();
      // Besides the buffer, the rows of one chunk are held, in given_.
      uint64_t bytes = 0;
      while (given_.size() < most && (bytes == 0 || bytes < context_.chunk_bytes())) {
        fill();
        if (places_.size() < stage_.buffer_ && input_.more()) {  // the next element failed
          if (!given_.empty()) break;
          out.reset(stage_.spec(), 1);
          pass_row(input_.input().chunk(), input_.input().row(), out, 0);
          input_.pass();
          return 1;
        }
        if (places_.empty()) break;
        given_.push_back(draw(places_, key_, draws_++));
        bytes += given_.back()->bytes();
      }
      const auto count = static_cast<uint32_t>(given_.size());
      if (count == 0) return 0;
      out.reset(stage_.spec(), count);
      for (uint32_t i = 0; i < count; ++i) given_[i]->give(out, i);
      return count;
    }

    void release() override {
      for (auto& row : given_) input_.release(std::move(row));
      given_.clear();
    }

    State save() const override {
      return {{"draws", draws_}, {"read", input_.read()}, {"held", input_.save()}};
    }

    void load(uint64_t epoch, const State& state) override {
      clear(epoch);
      const uint64_t draws = count_in(state, "draws"), read = count_in(state, "read");
      if (draws > read) throw refuse_restore("more was drawn from the buffer than was read");
      std::vector<uint64_t> places = replay(draws, read);
      std::unordered_map<uint64_t, size_t> place_of;
      for (size_t i = 0; i < places.size(); ++i) place_of[places[i]] = i;
      places_.resize(places.size());
      size_t found = 0;
      input_.load(
          epoch, member_of(state, "held"),
          [&](uint64_t ordinal) { return place_of.contains(ordinal); },
          [&](std::unique_ptr<HeldRow> row) {
            places_[place_of[row->ordinal]] = std::move(row);
            ++found;
          });
      if (found != places.size() || input_.read() != read) {
        throw refuse_restore("the state of the shuffle's buffer contradicts itself");
      }
      draws_ = draws;
    }

   private:
    void clear(uint64_t epoch) {
      key_ = derive_key(stage_.seed_, stage_.reshuffle_ ? epoch : 0, KeyUse::kBuffer);
      draws_ = 0;
      places_.clear();
      given_.clear();
    }
    void fill() {
      while (places_.size() < stage_.buffer_ && input_.more() && !input_.input().failed()) {
        places_.push_back(input_.hold());
      }
    }
    // The ordinals in the buffer after this many draws and reads.
    std::vector<uint64_t> replay(uint64_t draws, uint64_t read) const {
      std::vector<uint64_t> places;
      uint64_t next = 0;
      auto fill_up = [&] {
        while (places.size() < stage_.buffer_ && next < read) places.push_back(next++);
      };
      for (uint64_t i = 0; i < draws; ++i) {
        fill_up();
        if (places.empty()) throw refuse_restore("more was drawn from the buffer than was read");
        (void)draw(places, key_, i);
      }
      fill_up();
      return places;
    }

    const ShuffleBuffer& stage_;
    const Context& context_;
    HeldBack input_;
    std::vector<std::unique_ptr<HeldRow>> places_, given_;
    uint64_t key_ = 0, draws_ = 0;
  };

  uint64_t seed_, buffer_;
  bool reshuffle_;
};

}  // namespace

Node::Ref nodes::shuffle_buffer(Node::Ref input, uint64_t seed, uint64_t buffer, bool reshuffle) {
  if (buffer == 0) {
    throw Error(Code::kInvalidArgument, "shuffle", "buffer is 0; give 1 or more elements");
  }
  return make_node({
      .title = "shuffle(seed=" + std::to_string(seed) + ", buffer=" + std::to_string(buffer) +
               (reshuffle ? ")" : ", reshuffle=false)"),
      .inputs = {std::move(input)},
      .build =
          [=](std::vector<Built> inputs, Builder& builder) {
            return Built::of(std::make_shared<ShuffleBuffer>(builder.as_stream(inputs[0]), seed,
                                                             buffer, reshuffle));
          },
  });
}

}  // namespace penstock
