#include <algorithm>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/json.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/stages/losses.h"
#include "penstock/pipeline/streams/held_back.h"
#include "penstock/pipeline/streams/streams.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
namespace {

// The number of windows over this many elements. REQUIRED: options.shift is not 0.
uint64_t windows_over(uint64_t elements, const WindowOptions& options) {
  if (elements == kEndless) return kEndless;
  const uint64_t reach = options.drop_last ? (options.size - 1) * options.stride : 0;
  return elements <= reach ? 0 : (elements - reach - 1) / options.shift + 1;
}

class Window : public Collated {
 public:
  Window(IndexedRef input, const WindowOptions& options)
      : Collated(std::move(input)), options_(options) {}

  uint64_t length(uint64_t base) const override {
    return windows_over(input()->length(base), options_);
  }
  uint64_t rows(uint64_t window, uint64_t base) const override {
    const uint64_t left = input()->length(base) - window * options_.shift;
    return std::min(options_.size, (left - 1) / options_.stride + 1);
  }
  uint64_t max_rows() const override { return options_.size; }
  uint64_t element(uint64_t window, uint64_t row, uint64_t) const override {
    return window * options_.shift + row * options_.stride;
  }

 private:
  WindowOptions options_;
};

// Holds elements as long as a window may need them. A failed element passes through at once and is
// in no window: the elements after it move up.
class WindowStream : public StreamMapped {
 public:
  WindowStream(StreamedRef input, const WindowOptions& options, std::string title)
      : StreamMapped(std::move(input)), options_(options), title_(std::move(title)) {}

  SpecRef spec() const override { return nullptr; }
  std::optional<uint64_t> length() const override {
    const std::optional<uint64_t> all = input()->length();
    return all ? std::optional(windows_over(*all, options_)) : std::nullopt;
  }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public ElementReader {
   public:
    Reader(const WindowStream& stage, Context& context)
        : stage_(stage),
          options_(stage.options_),
          input_(*stage.input(), context, 64),
          batch_(stage.title_, stage.input()->spec(), Collector::Lengths::kEqual, nullptr) {}

    void begin(uint64_t epoch) override {
      held_.clear();
      lost_.clear();
      first_ = 0;
      input_.begin(epoch);
    }

    uint32_t next(uint32_t most, Chunk& out) override {
      const uint32_t count = make(most, out);
      if (count != 0 || lost_.empty()) return count;
      out.reset(nullptr, 1);  // losses that no window carries
      note_losses_before(UINT64_MAX, out, 0);
      return out.drop_row(0) ? 1 : 0;
    }

    State save() const override {
      State state = {{"first", first_}, {"held", input_.save()}};
      if (lost_.empty()) return state;
      State before = State::array();
      std::vector<Failure> losses;
      for (const auto& [ordinal, lost] : lost_) {
        before.push_back(ordinal);
        losses.push_back(lost);
      }
      state["lost"] = state_of_losses(losses);
      state["lost_before"] = std::move(before);
      return state;
    }

    void load(uint64_t epoch, const State& state) override {
      const uint64_t first = count_in(state, "first");
      held_.clear();
      load_losses(state);
      input_.load(
          epoch, member_of(state, "held"), [&](uint64_t ordinal) { return ordinal >= first; },
          [&](std::unique_ptr<HeldRow> row) {
            (void)row->take_lost();  // already delivered, or in the state
            held_.push_back(std::move(row));
          });
      first_ = first;
      if (held_.size() != input_.read() - std::min(first_, input_.read())) {
        throw refuse_restore("the window's state contradicts itself");
      }
    }

   private:
    void load_losses(const State& state) {
      lost_.clear();
      if (!state.contains("lost")) return;
      std::vector<Failure> losses = losses_in(state["lost"]);
      const State& before = member_of(state, "lost_before");
      if (!before.is_array() || before.size() != losses.size()) {
        throw refuse_restore("the window's losses have no places");
      }
      for (size_t i = 0; i < losses.size(); ++i) {
        if (!before[i].is_number_unsigned()) throw refuse_restore("a loss's place is no number");
        lost_.emplace_back(before[i].get<uint64_t>(), std::move(losses[i]));
      }
    }

    // Notes losses before an ordinal on a row, once: on the first window that reaches the ordinal.
    // An element may be in several windows, or in none.
    void note_losses_before(uint64_t end, Chunk& out, uint32_t row) {
      while (!lost_.empty() && lost_.front().first < end) {
        out.note(row, std::move(lost_.front().second));
        lost_.pop_front();
      }
    }

    // Gives the windows that the input's current chunk completes, or one failed element.
    uint32_t make(uint32_t most, Chunk& out) {
      batch_.empty();
      bool over = false;
      while (complete() == 0 && !over) {
        over = !input_.more();
        if (over) continue;
        if (input_.input().failed()) {
          out.reset(nullptr, 1);
          pass_row(input_.input().chunk(), input_.input().row(), out, 0);
          input_.pass();
          return 1;
        }
        take();
      }
      while (!over && complete() < most && input_.input().left() > 0 && !input_.input().failed()) {
        take();
      }
      uint64_t count = complete();
      if (over && !options_.drop_last && first_ < input_.read()) {
        count = (input_.read() - first_ - 1) / options_.shift + 1;
      }
      count = std::min<uint64_t>(count, most);
      if (count == 0) return 0;
      out.reset(nullptr, static_cast<uint32_t>(count));
      for (uint32_t row = 0; row < count; ++row) give(out, row);
      return static_cast<uint32_t>(count);
    }

    // The number of windows whose elements were all read.
    uint64_t complete() const {
      const uint64_t last = first_ + (options_.size - 1) * options_.stride;
      return input_.read() <= last ? 0 : (input_.read() - last - 1) / options_.shift + 1;
    }

    void take() {
      StreamInput& input = input_.input();
      for (Failure& lost : input.chunk().take_notes(input.row())) {
        lost_.emplace_back(input_.read(), std::move(lost));
      }
      if (input_.read() < first_) {
        input_.skip_if_undecided();
      } else {
        held_.push_back(input_.hold());
      }
    }

    // Gives the next window, from its elements that are held.
    void give(Chunk& out, uint32_t row) {
      window_.clear();
      for (uint64_t at = 0; at < held_.size() && window_.size() < options_.size;
           at += options_.stride) {
        window_.push_back(held_[at].get());
      }
      batch_.give(window_, out, row);
      note_losses_before(first_ + (options_.size - 1) * options_.stride + 1, out, row);
      first_ += options_.shift;
      while (!held_.empty() && held_.front()->ordinal < first_) {
        input_.release(std::move(held_.front()));
        held_.pop_front();
      }
    }

    const WindowStream& stage_;
    const WindowOptions& options_;
    HeldBack input_;
    std::deque<std::unique_ptr<HeldRow>> held_;  // elements from first_ on that were read
    uint64_t first_ = 0;                         // ordinal of the next window's first element
    // pending losses, with the ordinal that each was noted on
    std::deque<std::pair<uint64_t, Failure>> lost_;
    std::vector<HeldRow*> window_;
    HeldBatch batch_;
  };

  WindowOptions options_;
  std::string title_;
};

}  // namespace

Node::Ref nodes::window(Node::Ref input, WindowOptions options) {
  if (options.shift == 0) options.shift = options.size;
  for (auto [name, value] : {std::pair{"size", options.size}, std::pair{"shift", options.shift},
                             std::pair{"stride", options.stride}}) {
    if (value > 0 && value <= UINT32_MAX) continue;
    throw Error(Code::kInvalidArgument, "window",
                std::string(name) + " is " + std::to_string(value) + "; give 1 to 4294967295");
  }
  return make_node({
      .title =
          "window(" + std::to_string(options.size) + ", shift=" + std::to_string(options.shift) +
          ", stride=" + std::to_string(options.stride) + (options.drop_last ? ", drop_last)" : ")"),
      .inputs = {std::move(input)},
      .build = [options](std::vector<Built> inputs, Builder& builder) -> Built {
        if (inputs[0].stream != nullptr) {
          return Built::of(std::make_shared<WindowStream>(builder.as_stream(inputs[0]), options,
                                                          builder.title()));
        }
        return {std::make_shared<Window>(inputs[0].indexed, options)};
      },
  });
}

}  // namespace penstock
