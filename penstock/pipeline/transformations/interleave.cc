#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/json.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/stages/inputs.h"
#include "penstock/pipeline/stages/schema_checker.h"
#include "penstock/pipeline/streams/stream_input.h"
#include "penstock/pipeline/streams/streams.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
namespace {

// Maps a position to an input and a position in that input. While no input ends or begins, the
// turns repeat, so that such a stretch is one segment, whatever its length.
class Turns {
 public:
  struct Place {
    size_t input;
    uint64_t position;
  };

  Turns(const std::vector<uint64_t>& lengths, uint64_t cycle, uint64_t block)
      : block_(block), lengths_(lengths) {
    places_.assign(std::min<uint64_t>(cycle, lengths.size()), {kEmpty, 0});
    while (next_ < lengths_.size() || open_ > 0) {
      const uint64_t rounds = regular_rounds();
      rounds > 0 ? add_rounds(rounds) : add_turns();
    }
    lengths_.clear();
  }

  uint64_t length() const { return length_; }
  size_t segments() const { return segments_.size(); }

  size_t segment_of(uint64_t position) const {
    auto after = std::upper_bound(segments_.begin(), segments_.end(), position,
                                  [](uint64_t p, const Segment& s) { return p < s.first; });
    return static_cast<size_t>(after - segments_.begin()) - 1;
  }
  bool holds(size_t segment, uint64_t position) const {
    return position >= segments_[segment].first &&
           (segment + 1 == segments_.size() || position < segments_[segment + 1].first);
  }
  Place at(size_t segment, uint64_t position) const {
    const Segment& of = segments_[segment];
    const uint64_t inside = position - of.first;
    const uint64_t turn = inside / block_;
    const Place& begin = begins_[of.begin + turn % of.inputs];
    return {begin.input, begin.position + turn / of.inputs * block_ + inside % block_};
  }

 private:
  static constexpr size_t kEmpty = SIZE_MAX;
  struct Segment {
    uint64_t first;  // first position
    size_t begin;    // index of its first input in begins_
    size_t inputs;
  };

  // The number of coming rounds in which every place gives a whole block. 0 if a new input may take
  // an empty place.
  uint64_t regular_rounds() const {
    if (open_ == 0 || (next_ < lengths_.size() && open_ < places_.size())) return 0;
    uint64_t rounds = UINT64_MAX;
    for (const Place& place : places_) {
      if (place.input == kEmpty) continue;
      rounds = std::min(rounds, (lengths_[place.input] - place.position) / block_);
    }
    return rounds;
  }

  void add_rounds(uint64_t rounds) {
    segments_.push_back({length_, begins_.size(), open_});
    for (Place& place : places_) {
      if (place.input == kEmpty) continue;
      begins_.push_back(place);
      place.position += rounds * block_;
      length_ += rounds * block_;
    }
  }

  // Adds one round, turn by turn.
  void add_turns() {
    for (Place& place : places_) {
      if (place.input == kEmpty) begin_next(place);
      if (place.input == kEmpty) continue;
      const uint64_t left = lengths_[place.input] - place.position;
      const uint64_t count = std::min(left, block_);
      if (count > 0) {
        segments_.push_back({length_, begins_.size(), 1});
        begins_.push_back(place);
        length_ += count;
        place.position += count;
      }
      if (left < block_) {
        place.input = kEmpty;
        --open_;
      }
    }
  }

  void begin_next(Place& place) {
    if (next_ == lengths_.size()) return;
    place = {next_++, 0};
    ++open_;
  }

  uint64_t block_;
  std::vector<uint64_t> lengths_;
  std::vector<Place> places_;  // places of the cycle, used while building
  size_t next_ = 0, open_ = 0;
  std::vector<Segment> segments_;
  std::vector<Place> begins_;
  uint64_t length_ = 0;
};

class Interleave : public IndexedInputs {
 public:
  Interleave(std::vector<IndexedRef> inputs, const std::vector<uint64_t>& lengths, uint64_t cycle,
             uint64_t block)
      : IndexedInputs(std::move(inputs), "interleave"), turns_(lengths, cycle, block) {}

  uint64_t length(uint64_t) const override { return turns_.length(); }
  std::unique_ptr<IndexedReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public IndexedReader {
   public:
    Reader(const Interleave& stage, Context& context)
        : turns_(stage.turns_), readers_(stage.inputs(), "interleave", context) {}

    void fetch(const At& at, std::span<const uint64_t> positions, Chunk& out,
               uint32_t row) override {
      size_t begin = 0;  // first of a run of positions in one input
      Turns::Place last{SIZE_MAX, 0};
      for (size_t i = 0; i < positions.size(); ++i) {
        if (!turns_.holds(segment_, positions[i])) segment_ = turns_.segment_of(positions[i]);
        const Turns::Place place = turns_.at(segment_, positions[i]);
        if (place.input != last.input && i > begin) {
          take(last.input, at, begin, i, out, row);
          begin = i;
        }
        last = place;
        inside_[i] = place.position;
      }
      if (!positions.empty()) take(last.input, at, begin, positions.size(), out, row);
    }

   private:
    void take(size_t input, const At& at, size_t begin, size_t end, Chunk& out, uint32_t row) {
      readers_.fetch(input, at, std::span<const uint64_t>(&inside_[begin], end - begin), out,
                     static_cast<uint32_t>(row + begin));
    }

    const Turns& turns_;
    InputReaders readers_;
    size_t segment_ = 0;  // segment of the last position
    std::array<uint64_t, Chunk::kRows> inside_;
  };

  Turns turns_;
};

// The same order for streams: `cycle` of them are open at a time. State: the current place, and for
// every open input its number and its state.
class InterleaveInputs : public StreamInputs {
 public:
  InterleaveInputs(std::vector<StreamedRef> inputs, uint64_t cycle, uint64_t block)
      : StreamInputs(std::move(inputs), "interleave"),
        cycle_(std::min<uint64_t>(cycle, this->inputs().size())),
        block_(block) {}

  std::optional<uint64_t> length() const override { return total_length(inputs()); }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public ElementReader {
   public:
    Reader(const InterleaveInputs& stage, Context& context)
        : stage_(stage),
          context_(context),
          inputs_(stage.inputs().size()),
          places_(stage.cycle_, kEmpty) {}

    void begin(uint64_t epoch) override {
      epoch_ = epoch;
      std::fill(places_.begin(), places_.end(), kEmpty);
      open_ = next_ = place_ = given_ = 0;
      schema_.begin();
    }

    // Rows of several inputs' chunks go into one chunk, until one of the inputs must be read
    // further.
    uint32_t next(uint32_t most, Chunk& out) override {
      picked_.forget();  // left by a call that threw
      while (picked_.size() < most) {
        size_t& place = places_[place_];
        if (place == kEmpty) {
          if (next_ < inputs_.size()) {
            place = next_++;
            ++open_;
            input(place).begin(epoch_);
          } else if (open_ == 0) {
            break;
          } else {
            move_on();
          }
          continue;
        }
        StreamInput& from = input(place);
        if (from.left() == 0 && picked_.size() > 0) break;
        if (from.more()) {
          const bool placed = from.placed();
          picked_.add(from);
          if (placed && ++given_ == stage_.block_) move_on();
        } else {
          place = kEmpty;
          --open_;
          move_on();
        }
      }
      return picked_.size() == 0 ? 0 : picked_.give(stage_.spec(), out, schema_, "interleave");
    }

    void release() override { picked_.forget(); }
    State save() const override {
      State places = State::array();
      for (size_t which : places_) {
        places.push_back(
            which == kEmpty ? State() : State{{"which", which}, {"inner", inputs_[which]->save()}});
      }
      State state = {
          {"place", place_}, {"given", given_}, {"next", next_}, {"places", std::move(places)}};
      schema_.save(state);
      return state;
    }

    void load(uint64_t epoch, const State& state) override {
      const uint64_t place = count_in(state, "place"), given = count_in(state, "given");
      const uint64_t next = count_in(state, "next");
      const State& places = member_of(state, "places");
      if (!places.is_array() || places.size() != places_.size() || place >= places_.size() ||
          given >= stage_.block_ || next > inputs_.size()) {
        throw refuse_restore("the state is of another cycle");
      }
      begin(epoch);
      for (size_t i = 0; i < places.size(); ++i) {
        if (places[i].is_null()) continue;
        const uint64_t which = count_in(places[i], "which");
        if (which >= next || std::count(places_.begin(), places_.end(), which) != 0) {
          throw refuse_restore("the state is of other inputs");
        }
        input(which).load(epoch, member_of(places[i], "inner"));
        places_[i] = which;
        ++open_;
      }
      place_ = place;
      given_ = given;
      next_ = next;
      schema_.load(state);
    }

   private:
    static constexpr size_t kEmpty = SIZE_MAX;

    // Opens an input at its first turn and keeps it open, since a parallel map allows only one
    // reader in its lifetime.
    StreamInput& input(size_t which) {
      std::unique_ptr<StreamInput>& input = inputs_[which];
      if (input == nullptr) {
        input = std::make_unique<StreamInput>(*stage_.inputs()[which], context_);
      }
      return *input;
    }

    void move_on() {
      place_ = place_ + 1 == places_.size() ? 0 : place_ + 1;
      given_ = 0;
    }

    const InterleaveInputs& stage_;
    Context& context_;
    std::vector<std::unique_ptr<StreamInput>> inputs_;
    std::vector<size_t> places_;  // for each place of the cycle, its input
    PickedRows picked_;
    SchemaChecker schema_{stage_.spec()};
    uint64_t epoch_ = 0;
    size_t next_ = 0;     // the next input to open
    size_t open_ = 0;     // number of places with an open input
    size_t place_ = 0;    // the current place
    uint64_t given_ = 0;  // elements given in this turn
  };

  uint64_t cycle_, block_;
};

}  // namespace

Node::Ref nodes::interleave(std::vector<Node::Ref> inputs, uint64_t cycle, uint64_t block) {
  constexpr size_t kMaxInputs = 65536;
  auto refuse = [](const std::string& why) {
    return Error(Code::kInvalidArgument, "interleave", why);
  };
  const size_t count = inputs.size();
  if (count == 0 || count > kMaxInputs) {
    throw refuse(std::to_string(count) + " inputs; give 1 to " + std::to_string(kMaxInputs));
  }
  if (cycle == 0) throw refuse("cycle is 0; give 1 or more");
  if (block == 0) throw refuse("block is 0; give 1 or more");
  return make_node({
      .title = "interleave(" + std::to_string(count) + ", cycle=" + std::to_string(cycle) +
               ", block=" + std::to_string(block) + ")",
      .inputs = std::move(inputs),
      .build = [=](std::vector<Built> built, Builder& builder) -> Built {
        if (any_stream(built)) {
          return Built::of(
              std::make_shared<InterleaveInputs>(builder.as_streams(built), cycle, block));
        }
        std::vector<IndexedRef> indexed = indexed_of(built);
        std::vector<uint64_t> lengths;
        for (size_t i = 0; i < indexed.size(); ++i) {
          lengths.push_back(indexed[i]->length(0));
          if (lengths.back() == kEndless) {
            throw refuse("input " + std::to_string(i) + " has no end");
          }
        }
        return {std::make_shared<Interleave>(std::move(indexed), lengths, cycle, block)};
      },
  });
}

}  // namespace penstock
