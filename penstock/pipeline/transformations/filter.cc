#include "penstock/pipeline/transformations/filter.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "penstock/pipeline/builder.h"
#include "penstock/pipeline/judged_input.h"

namespace penstock {
namespace {

class Filter : public JudgedStage {
 public:
  using JudgedStage::JudgedStage;

  std::unique_ptr<StreamReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public StreamReader {
   public:
    Reader(const Filter& stage, Context& context) : input_(stage.input(context)) {}

    void begin(uint64_t epoch) override {
      dropped_.clear();
      input_.begin(epoch);
    }
    uint32_t next(uint32_t most, Chunk& out) override {
      picked_.forget();  // what a call that threw has left
      StreamInput& input = input_.input();
      while (input_.more()) {
        while (input.left() > 0 && picked_.size() < most) {
          if (input_.holds()) {
            picked_.add(input);
          } else {
            keep_notes(input.chunk(), input.row());
            input.use();
          }
        }
        if (picked_.size() > 0) {
          const uint32_t count = picked_.give(input.spec(), out);
          hand_on_notes(count, out);
          return count;
        }
      }
      return left_over(most, out);
    }
    State save() const override { return input_.save(); }
    void load(uint64_t epoch, const State& state) override {
      dropped_.clear();
      input_.load(epoch, state);
    }

   private:
    // What was lost on the way to an element that is dropped goes to the next one that is not.
    void keep_notes(Chunk& in, uint32_t row) {
      for (auto& [noted, lost] : in.notes()) {
        if (noted == row) dropped_.emplace_back(picked_.size(), std::move(lost));
      }
    }
    void hand_on_notes(uint32_t count, Chunk& out) {
      std::vector<std::pair<uint32_t, Failure>> later;
      for (auto& [row, lost] : dropped_) {
        if (row < count) {
          out.note(row, std::move(lost));
        } else {
          later.emplace_back(0, std::move(lost));
        }
      }
      dropped_ = std::move(later);
    }
    // Behind the last element each stands for itself.
    uint32_t left_over(uint32_t most, Chunk& out) {
      const auto count = static_cast<uint32_t>(std::min<size_t>(most, dropped_.size()));
      if (count == 0) return 0;
      out.reset(nullptr, count);
      for (uint32_t row = 0; row < count; ++row) {
        dropped_[row].second.forgiven = true;
        out.fail(row, std::move(dropped_[row].second));
      }
      dropped_.erase(dropped_.begin(), dropped_.begin() + count);
      return count;
    }

    JudgedInput input_;
    PickedRows picked_;
    std::vector<std::pair<uint32_t, Failure>> dropped_;  // by the row picked next
  };
};

}  // namespace

Built FilterNode::build(std::vector<Built> inputs, Builder& builder) const {
  return Built::of(std::make_shared<Filter>(inputs[0], builder, predicate_, title()));
}

}  // namespace penstock
