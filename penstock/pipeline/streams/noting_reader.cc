#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "penstock/pipeline/stages/losses.h"
#include "penstock/pipeline/streams/streams.h"

namespace penstock {

namespace {

class PlacedReader : public ElementReader {
 public:
  PlacedReader(std::unique_ptr<ElementReader> input, const Context& context)
      : input_(std::move(input)), context_(context) {}

  void begin(uint64_t epoch) override {
    lost_.clear();
    over_ = false;
    input_->begin(epoch);
  }

  uint32_t next(uint32_t most, Chunk& out) override {
    while (!over_) {
      const uint32_t count = input_->next(most, out);
      if (count == 0) {
        over_ = true;
      } else if (out.failures().empty() && lost_.empty()) {
        return count;
      } else if (place(out) != 0) {
        return out.rows();
      } else {
        context_.check_open();
      }
    }
    if (lost_.empty()) return 0;
    out.reset(nullptr, 1);
    out.lose(0, std::exchange(lost_, {}));
    return 1;
  }

  void release() override { input_->release(); }

  State save() const override {
    if (lost_.empty()) return input_->save();
    return {{"lost", state_of_losses(lost_)}, {"behind", input_->save()}};
  }

  void load(uint64_t epoch, const State& state) override {
    std::vector<Failure> lost;
    const bool any = state.is_object() && state.contains("behind");
    if (any) lost = losses_in(member_of(state, "lost"));
    input_->load(epoch, any ? member_of(state, "behind") : state);
    lost_ = std::move(lost);
    over_ = false;
  }

 private:
  // Moves skipped rows out of `out` into lost_ or the notes of the next row. Returns how many rows
  // are left.
  uint32_t place(Chunk& out) {
    const auto by_row = [](const auto& a, const auto& b) { return a.first < b.first; };
    std::ranges::stable_sort(out.failures(), by_row);
    std::ranges::stable_sort(out.notes(), by_row);
    auto failures = std::move(out.failures());
    auto notes = std::move(out.notes());
    out.failures().clear();
    out.notes().clear();
    auto failure = failures.begin();
    auto note = notes.begin();
    uint64_t gone = 0;
    for (uint32_t row = 0; row < out.rows(); ++row) {
      for (; note != notes.end() && note->first == row; ++note) {
        lost_.push_back(std::move(note->second));
      }
      // Only a row's first failure counts.
      const bool failed = failure != failures.end() && failure->first == row;
      if (failed && failure->second.settled()) {
        gone |= uint64_t{1} << row;
        lost_.push_back(std::move(failure->second));
      } else {
        for (Failure& lost : lost_) out.note(row, std::move(lost));
        lost_.clear();
        if (failed) out.failures().emplace_back(row, std::move(failure->second));
      }
      while (failure != failures.end() && failure->first == row) ++failure;
    }
    out.remove(gone);
    return out.rows();
  }

  std::unique_ptr<ElementReader> input_;
  const Context& context_;
  std::vector<Failure> lost_;  // losses before the next row
  bool over_ = false;
};

}  // namespace

std::unique_ptr<ElementReader> noting_reader(std::unique_ptr<ElementReader> input,
                                             const Context& context) {
  return std::make_unique<PlacedReader>(std::move(input), context);
}

namespace {

class PolicyStream : public StreamMapped {
 public:
  PolicyStream(StreamedRef input, const FailurePolicy& policy)
      : StreamMapped(std::move(input)), policy_(policy) {}

  std::optional<uint64_t> length() const override { return input()->length(); }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(policy_, input()->open(context));
  }

 private:
  class Reader : public ElementReader {
   public:
    Reader(const FailurePolicy& policy, std::unique_ptr<ElementReader> input)
        : policy_(policy), input_(std::move(input)) {}

    void begin(uint64_t epoch) override { input_->begin(epoch); }
    uint32_t next(uint32_t most, Chunk& out) override {
      const uint32_t count = input_->next(most, out);
      if (count == 0) return 0;
      for (auto& [row, failure] : out.failures()) {
        if (failure.decision != Decision::kUndecided) continue;
        failure.decision = policy_.skip ? Decision::kSkip : Decision::kRaise;
        failure.provisional |= policy_.skip && !policy_.sure;
      }
      return count;
    }
    void release() override { input_->release(); }
    State save() const override { return input_->save(); }
    void load(uint64_t epoch, const State& state) override { input_->load(epoch, state); }

   private:
    const FailurePolicy policy_;
    std::unique_ptr<ElementReader> input_;
  };

  FailurePolicy policy_;
};

}  // namespace

StreamedRef policy_stream(StreamedRef input, const FailurePolicy& policy) {
  return std::make_shared<PolicyStream>(std::move(input), policy);
}

}  // namespace penstock
