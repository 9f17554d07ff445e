#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "penstock/pipeline/stages/gather_chunk.h"
#include "penstock/pipeline/stages/schema_checker.h"
#include "penstock/pipeline/stages/stream_chunk.h"
#include "penstock/pipeline/streams/streams.h"

namespace penstock {
namespace {

class TailedStream : public Streamed {
 public:
  explicit TailedStream(Built built) : built_(std::move(built)) {}

  SpecRef spec() const override { return built_.tail->spec(); }
  std::optional<uint64_t> length() const override {
    auto all = built_.stream->length();
    if (!all || *all == kEndless) return all;
    return *all / built_.per_output + (!built_.drop_partial && *all % built_.per_output != 0);
  }
  bool python() const override { return built_.stream->python() || built_.tail->python(); }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(built_, context);
  }

 private:
  class Reader : public ElementReader {
   public:
    Reader(const Built& built, Context& context)
        : built_(built),
          own_(context.over(own_scratch_)),
          stream_(built.stream->open(context)),
          tail_(*built.tail, own_),
          gathered_(own_, *built.stream) {}

    void begin(uint64_t epoch) override {
      epoch_ = epoch;
      ordinal_ = 0;
      tail_.begin();
      stream_->begin(epoch);
    }

    uint32_t next(uint32_t most, Chunk& out) override {
      own_scratch_.empty();
      const uint64_t per = built_.per_output, first = ordinal_ * per;
      auto gathered =
          gathered_.gather(*stream_, per == 1 ? GatherChunk::Wanted{1, most, first, kInPlace}
                                              : GatherChunk::Wanted{per, per, first, kInPlace});
      stream_->release();
      if (per != 1) stack(gathered);
      const uint64_t rows = per == 1 ? gathered.rows : gathered.rows / per;
      const auto places = static_cast<uint32_t>(rows + gathered.failed.size());
      // Losses after the last element get a row of their own.
      const bool alone = !gathered.left_out.empty() && gathered.left_out.back().place >= places;
      const uint32_t all = places + (alone ? 1 : 0);
      if (all == 0) return 0;
      out.reset(built_.tail->spec(), all);
      if (rows != 0) apply(gathered, rows, first, out);
      for (auto& [place, failure] : gathered.failed) {
        out.fail(static_cast<uint32_t>(place), std::move(failure));
      }
      for (auto& [place, lost] : gathered.left_out) {
        const auto row = static_cast<uint32_t>(std::min<uint64_t>(place, all - 1));
        if (row == places && (out.alive() >> row & 1) != 0) {
          lost.skip_if_undecided();
          out.fail(row, std::move(lost));
        } else {
          out.note(row, std::move(lost));
        }
      }
      ordinal_ += rows;
      return all;
    }

    State save() const override {
      State state = {{"ordinal", ordinal_}, {"state", stream_->save()}};
      tail_.save(state);
      return state;
    }
    void load(uint64_t epoch, const State& state) override {
      epoch_ = epoch;
      ordinal_ = count_in(state, "ordinal");
      stream_->load(epoch, member_of(state, "state"));
      tail_.load(state);
    }

   private:
    static constexpr auto kInPlace = GatherChunk::Failures::kInPlace;

    // Combines per_output input elements into one output place. If one of them failed, the output
    // failed.
    void stack(GatherChunk::Gathered& gathered) const {
      const uint64_t per = built_.per_output;
      if (!gathered.failed.empty()) {
        gathered.failed.erase(gathered.failed.begin() + 1, gathered.failed.end());
        gathered.failed.front().place = 0;
        gathered.rows = 0;
      } else if (gathered.rows < per) {
        gathered.rows = built_.drop_partial || gathered.rows == 0 ? 0 : per;
      }
      const bool one = gathered.places() != 0;
      for (auto& lost : gathered.left_out) lost.place = one ? 0 : 1;
    }

    // Applies the tail to the elements that are alive. Failed places are left empty in `out`.
    void apply(const GatherChunk::Gathered& gathered, uint64_t rows, uint64_t first, Chunk& out) {
      std::byte* at = own_scratch_.take(StreamChunk::bytes_of(gathered_));
      StreamChunk::write(gathered_, first, at);
      StreamChunk stream_chunk = StreamChunk::read(at);
      own_.stream_chunk = &stream_chunk;
      std::array<uint64_t, Chunk::kRows> positions;
      std::iota(positions.begin(), positions.begin() + rows, ordinal_);
      auto gap = gathered.failed.begin();
      for (uint64_t made = 0, row = 0; made < rows;) {
        for (; gap != gathered.failed.end() && gap->place == row; ++gap) ++row;
        const uint64_t end = gap == gathered.failed.end() ? row + (rows - made) : gap->place;
        tail_.fetch({epoch_, 0}, std::span<const uint64_t>(positions.data() + made, end - row), out,
                    static_cast<uint32_t>(row));
        made += end - row;
        row = end;
      }
      own_.stream_chunk = nullptr;
    }

    const Built& built_;
    Scratch own_scratch_;  // emptied with every call, while other scratch memory is still in use
    Context own_;
    std::unique_ptr<ElementReader> stream_;
    CheckedRows tail_;
    GatherChunk gathered_;
    uint64_t epoch_ = 0, ordinal_ = 0;
  };

  Built built_;
};

}  // namespace

StreamedRef tailed_stream(const Built& built) { return std::make_shared<TailedStream>(built); }

}  // namespace penstock
