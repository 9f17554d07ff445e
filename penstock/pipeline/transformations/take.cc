#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "penstock/base/json.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/streams/stream_input.h"
#include "penstock/pipeline/streams/streams.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {

namespace {

class Take : public IndexMapped {
 public:
  Take(IndexedRef input, uint64_t n) : IndexMapped(std::move(input)), n_(n) {}

  uint64_t length(uint64_t base) const override { return std::min(n_, input()->length(base)); }
  uint32_t map(At&, std::span<uint64_t> positions) const override {
    return static_cast<uint32_t>(positions.size());
  }
  std::vector<uint64_t> blocks() const override {
    std::vector<uint64_t> ends = input()->blocks();
    const auto cut = std::ranges::lower_bound(ends, n_);
    if (cut == ends.end()) return ends;
    *cut = n_;
    ends.erase(n_ == 0 ? cut : cut + 1, ends.end());
    return ends;
  }

 private:
  uint64_t n_;
};

class TakeStream : public StreamMapped {
 public:
  TakeStream(StreamedRef input, uint64_t n) : StreamMapped(std::move(input)), n_(n) {}

  std::optional<uint64_t> length() const override {
    auto all = input()->length();
    if (!all) return n_ == 0 ? std::optional<uint64_t>(0) : std::nullopt;
    return std::min(n_, *all);
  }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public ElementReader {
   public:
    Reader(const TakeStream& stage, Context& context)
        : n_(stage.n_), input_(stage.input()->open(context)) {}

    void begin(uint64_t epoch) override {
      taken_ = 0;
      input_->begin(epoch);
    }
    uint32_t next(uint32_t most, Chunk& out) override {
      if (taken_ == n_) return 0;
      const uint32_t count =
          input_->next(static_cast<uint32_t>(std::min<uint64_t>(most, n_ - taken_)), out);
      if (count != 0) taken_ += static_cast<uint64_t>(std::popcount(out.alive()));
      return count;
    }
    void release() override { input_->release(); }
    State save() const override { return {{"taken", taken_}, {"input", input_->save()}}; }
    void load(uint64_t epoch, const State& state) override {
      taken_ = count_in(state, "taken");
      if (taken_ > n_) throw refuse_restore("the state is beyond the end of take");
      input_->load(epoch, member_of(state, "input"));
    }

   private:
    uint64_t n_;
    std::unique_ptr<ElementReader> input_;
    uint64_t taken_ = 0;
  };

  uint64_t n_;
};

}  // namespace

Node::Ref nodes::take(Node::Ref input, uint64_t n) {
  return make_node({
      .title = "take(" + std::to_string(n) + ")",
      .inputs = {std::move(input)},
      .build = [n](std::vector<Built> inputs, Builder& builder) -> Built {
        if (inputs[0].stream == nullptr) return {std::make_shared<Take>(inputs[0].indexed, n)};
        // The tail then makes only the elements that are taken.
        Built built = builder.without_gaps(inputs[0]);
        uint64_t elements;
        if (__builtin_mul_overflow(n, built.per_output, &elements)) elements = kEndless;
        built.stream = std::make_shared<TakeStream>(std::move(built.stream), elements);
        return built;
      },
  });
}

namespace {

class Skip : public IndexMapped {
 public:
  Skip(IndexedRef input, uint64_t n) : IndexMapped(std::move(input)), n_(n) {}

  uint64_t length(uint64_t base) const override {
    const uint64_t all = input()->length(base);
    return all == kEndless ? all : all - std::min(n_, all);
  }
  uint32_t map(At&, std::span<uint64_t> positions) const override {
    for (uint64_t& position : positions) position += n_;
    return static_cast<uint32_t>(positions.size());
  }
  std::vector<uint64_t> blocks() const override {
    std::vector<uint64_t> ends = input()->blocks();
    ends.erase(ends.begin(), std::ranges::upper_bound(ends, n_));
    for (uint64_t& end : ends) end -= n_;
    return ends;
  }

 private:
  uint64_t n_;
};

class SkipStream : public StreamMapped {
 public:
  SkipStream(StreamedRef input, uint64_t n) : StreamMapped(std::move(input)), n_(n) {}

  std::optional<uint64_t> length() const override {
    auto all = input()->length();
    if (!all || *all == kEndless) return all;
    return *all - std::min(n_, *all);
  }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public ElementReader {
   public:
    Reader(const SkipStream& stage, Context& context)
        : stage_(stage),
          own_(context.over(scratch_)),
          input_(stage.input()->open(own_)),
          skipping_(scratch_) {}

    void begin(uint64_t epoch) override {
      skipped_ = 0;
      input_->begin(epoch);
    }
    uint32_t next(uint32_t most, Chunk& out) override {
      scratch_.empty();
      while (skipped_ < stage_.n_) {
        own_.check_open();
        const uint32_t count = input_->next(
            static_cast<uint32_t>(std::min<uint64_t>(most, stage_.n_ - skipped_)), skipping_);
        if (count == 0) return 0;
        skipped_ += static_cast<uint64_t>(std::popcount(skipping_.alive()));
        if (const uint32_t lost = forward_losses(out); lost != 0) return lost;
        scratch_.empty();
      }
      return input_->next(most, out);
    }
    void release() override { input_->release(); }
    State save() const override { return {{"skipped", skipped_}, {"input", input_->save()}}; }
    void load(uint64_t epoch, const State& state) override {
      skipped_ = count_in(state, "skipped");
      if (skipped_ > stage_.n_) throw refuse_restore("more is skipped than skip does");
      input_->load(epoch, member_of(state, "input"));
    }

   private:
    // Hands on failed elements, which are not skipped, and the losses noted on skipped elements.
    uint32_t forward_losses(Chunk& out) {
      if (skipping_.failures().empty() && skipping_.notes().empty()) return 0;
      uint64_t skipped = 0;
      for (uint32_t row = 0; row < skipping_.rows(); ++row) {
        if ((skipping_.alive() >> row & 1) != 0 && !skipping_.drop_row(row)) {
          skipped |= uint64_t{1} << row;
        }
      }
      skipping_.remove(skipped);
      const uint32_t count = skipping_.rows();
      out.reset(stage_.spec(), count);
      for (uint32_t row = 0; row < count; ++row) pass_row(skipping_, row, out, row);
      return count;
    }

    const SkipStream& stage_;
    Scratch scratch_;  // separate, so that skipped elements use no memory of the batch
    Context own_;
    std::unique_ptr<ElementReader> input_;
    Chunk skipping_;
    uint64_t skipped_ = 0;
  };

  uint64_t n_;
};

}  // namespace

Node::Ref nodes::skip(Node::Ref input, uint64_t n) {
  return make_node({
      .title = "skip(" + std::to_string(n) + ")",
      .inputs = {std::move(input)},
      .build = [n](std::vector<Built> inputs, Builder& builder) -> Built {
        if (inputs[0].stream == nullptr) return {std::make_shared<Skip>(inputs[0].indexed, n)};
        return Built::of(std::make_shared<SkipStream>(builder.as_stream(inputs[0]), n));
      },
  });
}

}  // namespace penstock
