#include "penstock/pipeline/transformations/interleave.h"

#include <algorithm>
#include <array>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/stages/inputs.h"
#include "penstock/pipeline/transformations/interleave_inputs.h"

namespace penstock {
namespace {

// Which input has position p, and where in it. Between two moments at which inputs end or begin,
// their turns repeat: such a stretch is one segment, whatever its length.
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
    uint64_t first;  // position
    size_t begin;    // of its inputs in begins_
    size_t inputs;
  };

  // Rounds from here on in which every place gives a whole block. None begins while an empty place
  // may be taken by a new input.
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

  // One round, turn by turn.
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
  std::vector<Place> places_;  // of the cycle, while it is gone through
  size_t next_ = 0, open_ = 0;
  std::vector<Segment> segments_;
  std::vector<Place> begins_;
  uint64_t length_ = 0;
};

class Interleave : public Indexed {
 public:
  Interleave(std::vector<IndexedRef> inputs, const std::vector<uint64_t>& lengths, uint64_t cycle,
             uint64_t block)
      : inputs_(std::move(inputs)),
        spec_(common_spec(inputs_, "interleave")),
        turns_(lengths, cycle, block) {}

  uint64_t length(uint64_t) const override { return turns_.length(); }
  SpecRef spec() const override { return spec_; }
  bool costly() const override { return any_costly(inputs_); }
  bool python() const override { return any_python(inputs_); }
  Decision decision() const override { return common_decision(inputs_); }
  std::unique_ptr<IndexedReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public IndexedReader {
   public:
    Reader(const Interleave& stage, Context& context)
        : turns_(stage.turns_), readers_(stage.inputs_, "interleave", context) {}

    void fetch(const At& at, std::span<const uint64_t> positions, Chunk& out,
               uint32_t row) override {
      size_t begin = 0;  // of a run of positions in one input
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
    size_t segment_ = 0;  // of the last position
    std::array<uint64_t, Chunk::kRows> inside_;
  };

  std::vector<IndexedRef> inputs_;
  SpecRef spec_;
  Turns turns_;
};

}  // namespace

InterleaveNode::InterleaveNode(std::vector<Ref> inputs, uint64_t cycle, uint64_t block)
    : Node(std::move(inputs)), cycle_(cycle), block_(block) {
  auto refuse = [](const std::string& why) {
    return Error(Code::kInvalidArgument, "interleave", why);
  };
  const size_t count = this->inputs().size();
  if (count == 0 || count > kMostInputs) {
    throw refuse(std::to_string(count) + " inputs; give 1 to " + std::to_string(kMostInputs));
  }
  if (cycle == 0) throw refuse("cycle is 0; give 1 or more");
  if (block == 0) throw refuse("block is 0; give 1 or more");
}

std::string InterleaveNode::title() const {
  return "interleave(" + std::to_string(inputs().size()) + ", cycle=" + std::to_string(cycle_) +
         ", block=" + std::to_string(block_) + ")";
}

Built InterleaveNode::build(std::vector<Built> inputs, Builder& builder) const {
  if (any_stream(inputs)) {
    return Built::of(interleave_inputs(streams_of(inputs, builder), cycle_, block_));
  }
  std::vector<IndexedRef> indexed = indexed_of(inputs);
  std::vector<uint64_t> lengths;
  for (size_t i = 0; i < indexed.size(); ++i) {
    lengths.push_back(indexed[i]->length(0));
    if (lengths.back() == kEndless) {
      throw Error(Code::kInvalidArgument, "interleave",
                  "input " + std::to_string(i) + " has no end");
    }
  }
  return {std::make_shared<Interleave>(std::move(indexed), lengths, cycle_, block_)};
}

}  // namespace penstock
