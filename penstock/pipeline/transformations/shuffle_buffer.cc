#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/json.h"
#include "penstock/base/random.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/streams/held_back.h"
#include "penstock/pipeline/streams/streams.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
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
    // Releases the rows that the last chunk had views of.
    void release() {
      for (auto& row : given_) input_.release(std::move(row));
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
