#include <algorithm>
#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/pipeline/cache/kept_rows.h"
#include "penstock/pipeline/stages/losses.h"
#include "penstock/pipeline/streams/indexed_stream.h"
#include "penstock/pipeline/transformations/cache.h"

namespace penstock {
namespace {

class CacheStream : public Streamed {
 public:
  CacheStream(StreamedRef input, Keeping keeping)
      : input_(std::move(input)), keeping_(std::move(keeping)) {}

  SpecRef spec() const override { return input_->spec(); }
  std::optional<uint64_t> length() const override { return input_->length(); }
  bool python() const override { return input_->python(); }
  std::unique_ptr<StreamReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public StreamReader {
   public:
    Reader(const CacheStream& stage, Context& context)
        : spec_(stage.spec()),
          own_(below(context, stage.keeping_, scratch_)),
          input_(stage.input_->open(own_)),
          passed_(scratch_),
          kept_context_(context.over(kept_scratch_)),
          kept_(stage.keeping_.rows(kept_context_)) {}

    void begin(uint64_t) override {
      next_ = 0;
      over_ = false;
    }

    uint32_t next(uint32_t most, Chunk& out) override {
      if (over_) return 0;
      std::array<uint64_t, Chunk::kRows> positions;
      std::iota(positions.begin(), positions.begin() + most, next_);
      kept_scratch_.empty();
      const uint64_t there = kept_->look(std::span(positions.data(), most));
      if ((there & 1) != 0) {
        return give_kept(std::min<uint32_t>(most, static_cast<uint32_t>(std::countr_one(there))),
                         out);
      }
      if (kept_->end() == next_) return give_lost_behind(out);
      if (!go_to(next_)) return 0;
      scratch_.empty();
      // No further than to the next one that is kept: that says what was lost on the way to it.
      const auto missing = static_cast<uint32_t>(std::countr_zero(there));
      const uint32_t count = pull(std::min(most, missing), out);
      if (count == 0) {
        over();
        return 0;
      }
      keep(out, count);
      next_ = place_;
      over_ = out.left_out(0);  // only what was lost behind the last one
      if (over_) over();
      return count;
    }

    State save() const override {
      State state = {{"index", next_}};
      if (over_) state["over"] = true;
      return state;
    }
    void load(uint64_t, const State& state) override {
      next_ = count_in(state, "index");
      over_ = state.contains("over");
      if (kept_->end().value_or(next_) < next_) {
        throw Error(Code::kInvalidArgument, "restore", "the state is beyond the end of the cache");
      }
    }

   private:
    static Context below(const Context& context, const Keeping& keeping, Scratch& scratch) {
      Context own = context.over(scratch);
      own.seed = keeping.seed(context);
      return own;
    }

    // The first `count` of those that were looked for.
    uint32_t give_kept(uint32_t count, Chunk& out) {
      out.reset(spec_, count);
      for (uint32_t row = 0; row < count; ++row) {
        try {
          kept_->give(row, out, row);
        } catch (const Error& error) {
          if (error.code() == Code::kOutOfMemory) throw;
          out.fail(row, {"cache()", next_ + row, std::current_exception()});
        }
      }
      next_ += count;
      return count;
    }

    uint32_t give_lost_behind(Chunk& out) {
      over_ = true;
      out.reset(nullptr, 1);
      try {
        std::vector<Failure> lost = kept_->lost_behind();
        if (lost.empty()) return 0;
        out.lose(0, std::move(lost));
      } catch (const Error& error) {
        if (error.code() == Code::kOutOfMemory) throw;
        out.fail(0, {"cache()", next_, std::current_exception()});
      }
      return 1;
    }

    // Where an input that threw stands nobody knows: it is begun anew.
    uint32_t pull(uint32_t most, Chunk& out) {
      try {
        return input_->next(most, out);
      } catch (...) {
        begun_ = false;
        throw;
      }
    }

    // Brings the input to an element, from its front if it is beyond; false: it ends before.
    bool go_to(uint64_t index) {
      if (!begun_ || place_ > index) {
        begun_ = false;
        input_->begin(0);
        begun_ = true;
        sure_ = true;
        lost_behind_.clear();
        place_ = 0;
      }
      while (place_ < index) {
        own_.check_open();
        scratch_.empty();
        const auto most = static_cast<uint32_t>(std::min<uint64_t>(Chunk::kRows, index - place_));
        const uint32_t count = pull(most, passed_);
        if (count == 0) {
          over();
          return false;
        }
        keep(passed_, count);
      }
      return true;
    }

    // What failed has a place for now, and what is unsure has none; but another time it may be
    // there, or be left out, and then those behind it have other places: so none of them is kept,
    // nor is the end.
    void keep(const Chunk& rows, uint32_t count) {
      try {
        for (uint32_t row = 0; row < count; ++row) {
          sure_ = sure_ && rows.sure(row);
          if (rows.left_out(row)) {
            lost_behind_ = text_of_losses(rows, row);
            continue;
          }
          sure_ = sure_ && (rows.alive() >> row & 1) != 0;
          if (sure_) kept_->keep(place_, rows, row);
          ++place_;
        }
      } catch (...) {
        begun_ = false;  // the input is at the end of those rows, and this is not
        throw;
      }
    }

    void over() {
      begun_ = false;     // it may not be asked again
      own_.check_open();  // or what was read is not all
      if (sure_) kept_->set_end(place_, lost_behind_);
    }

    SpecRef spec_;
    Scratch scratch_;  // the input's: what it made is dropped with each of its chunks
    Context own_;
    std::unique_ptr<StreamReader> input_;
    Chunk passed_;
    Scratch kept_scratch_;  // what was kept, until the next chunk
    Context kept_context_;
    std::unique_ptr<KeptRows> kept_;
    uint64_t next_ = 0;   // element that is given next
    uint64_t place_ = 0;  // of the input
    bool begun_ = false;
    bool sure_ = true;         // that it would be at place_ each time
    std::string lost_behind_;  // of the input, as text_of_losses
    bool over_ = false;        // what was lost behind the last element was given
  };

  StreamedRef input_;
  Keeping keeping_;
};

}  // namespace

StreamedRef cached_stream(StreamedRef input, Keeping keeping) {
  return std::make_shared<CacheStream>(std::move(input), std::move(keeping));
}

}  // namespace penstock
