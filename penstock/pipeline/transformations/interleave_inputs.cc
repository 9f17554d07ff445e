#include "penstock/pipeline/transformations/interleave_inputs.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/pipeline/stages/inputs.h"
#include "penstock/pipeline/stages/restore_error.h"
#include "penstock/pipeline/stages/schema_checker.h"
#include "penstock/pipeline/streams/indexed_stream.h"
#include "penstock/pipeline/streams/stream_input.h"

namespace penstock {
namespace {

class InterleaveInputs : public Streamed {
 public:
  InterleaveInputs(std::vector<StreamedRef> inputs, uint64_t cycle, uint64_t block)
      : inputs_(std::move(inputs)),
        cycle_(std::min<uint64_t>(cycle, inputs_.size())),
        block_(block),
        spec_(common_spec(std::span<const StreamedRef>(inputs_), "interleave")) {}

  SpecRef spec() const override { return spec_; }
  std::optional<uint64_t> length() const override {
    uint64_t sum = 0;
    for (const StreamedRef& input : inputs_) {
      const std::optional<uint64_t> own = input->length();
      if (!own) return own;
      if (*own == kEndless || __builtin_add_overflow(sum, *own, &sum)) return kEndless;
    }
    return sum;
  }
  bool python() const override { return any_python(inputs_); }
  std::unique_ptr<StreamReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public StreamReader {
   public:
    Reader(const InterleaveInputs& stage, Context& context)
        : stage_(stage),
          context_(context),
          inputs_(stage.inputs_.size()),
          places_(stage.cycle_, kEmpty) {}

    void begin(uint64_t epoch) override {
      epoch_ = epoch;
      std::fill(places_.begin(), places_.end(), kEmpty);
      open_ = next_ = place_ = given_ = 0;
      schema_.begin();
    }

    // The rows of several inputs' chunks become one, as long as none of these is pulled.
    uint32_t next(uint32_t most, Chunk& out) override {
      picked_.forget();  // what a call that threw has left
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
      return picked_.size() == 0 ? 0 : picked_.give(stage_.spec_, out, schema_, "interleave");
    }

    void let_go() override { picked_.forget(); }
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

    // Opened when it has its first turn, and kept: a section has one reader in all its life.
    StreamInput& input(size_t which) {
      std::unique_ptr<StreamInput>& input = inputs_[which];
      if (input == nullptr) {
        input = std::make_unique<StreamInput>(*stage_.inputs_[which], context_);
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
    std::vector<size_t> places_;  // of the cycle: an input
    PickedRows picked_;
    SchemaChecker schema_{stage_.spec_};
    uint64_t epoch_ = 0;
    size_t next_ = 0;     // input that was not begun yet
    size_t open_ = 0;     // places that are not empty
    size_t place_ = 0;    // whose turn it is
    uint64_t given_ = 0;  // elements, in this turn
  };

  std::vector<StreamedRef> inputs_;
  uint64_t cycle_, block_;
  SpecRef spec_;
};

}  // namespace

StreamedRef interleave_inputs(std::vector<StreamedRef> inputs, uint64_t cycle, uint64_t block) {
  return std::make_shared<InterleaveInputs>(std::move(inputs), cycle, block);
}

}  // namespace penstock
