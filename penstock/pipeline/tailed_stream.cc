#include "penstock/pipeline/tailed_stream.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "penstock/pipeline/gather_parcel.h"
#include "penstock/pipeline/indexed_stream.h"
#include "penstock/pipeline/parcel.h"

namespace penstock {
namespace {

class TailedStream : public Streamed {
 public:
  explicit TailedStream(Built built) : built_(std::move(built)) {}

  SpecRef spec() const override { return built_.tail->spec(); }
  std::optional<uint64_t> length() const override {
    auto all = built_.stream->length();
    if (!all || *all == kEndless) return all;
    return *all / built_.per_output + (!built_.whole_outputs && *all % built_.per_output != 0);
  }
  bool python() const override { return built_.stream->python() || built_.tail->python(); }
  std::unique_ptr<StreamReader> reader(Context& context) const override {
    return std::make_unique<Reader>(built_, context);
  }

 private:
  class Reader : public StreamReader {
   public:
    Reader(const Built& built, Context& context)
        : built_(built),
          own_(context.over(own_scratch_)),
          stream_(built.stream->open(context)),
          tail_(built.tail->open(own_)),
          gathered_(own_scratch_, *built.stream) {}

    void begin(uint64_t epoch) override {
      epoch_ = epoch;
      ordinal_ = 0;
      stream_->begin(epoch);
    }

    uint32_t next(uint32_t most, Chunk& out) override {
      own_scratch_.empty();
      // A failure upstream is an element's of its own here: nothing is made of it.
      const uint64_t wanted = built_.per_output == 1 ? most : built_.per_output;
      const uint64_t first = ordinal_ * built_.per_output;
      auto gathered = gathered_.gather(*stream_, wanted, first);
      uint64_t rows = gathered.rows / built_.per_output;
      if (gathered.failure && built_.per_output != 1) rows = 0;
      if (!gathered.failure && !built_.whole_outputs && gathered.rows % built_.per_output != 0) {
        ++rows;
      }
      // What was left out on the way is told with the first row, or stands alone.
      uint64_t lost = gathered.failure ? 1 : 0;
      if (rows == 0) lost += std::min<uint64_t>(gathered.forgiven.size(), Chunk::kRows - 1);
      const auto all = static_cast<uint32_t>(rows + lost);
      if (all == 0) return 0;
      out.reset(built_.tail->spec(), all);
      if (rows != 0) {
        memory_.resize(Parcel::bytes_of(gathered_.elements()) + 64);
        std::byte* at = memory_.data() + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64);
        Parcel::write(gathered_.elements(), first, at);
        Parcel parcel = Parcel::read(at);
        own_.parcel = &parcel;
        std::array<uint64_t, Chunk::kRows> positions;
        std::iota(positions.begin(), positions.begin() + rows, ordinal_);
        tail_->fetch({epoch_, 0}, std::span<const uint64_t>(positions.data(), rows), out, 0);
        own_.parcel = nullptr;
      }
      auto row = static_cast<uint32_t>(rows);
      for (Failure& left_out : gathered.forgiven) {
        if (rows != 0) {
          out.note(0, std::move(left_out));
        } else if (row + 1 < Chunk::kRows) {
          out.fail(row++, std::move(left_out));
        }
      }
      if (gathered.failure) out.fail(row, std::move(*gathered.failure));
      ordinal_ += rows;
      return all;
    }

    State save() const override { return {{"ordinal", ordinal_}, {"state", stream_->save()}}; }
    void load(uint64_t epoch, const State& state) override {
      epoch_ = epoch;
      ordinal_ = count_in(state, "ordinal");
      stream_->load(epoch, member_of(state, "state"));
    }

   private:
    const Built& built_;
    Scratch own_scratch_;  // emptied with every call, whatever the others still hold
    Context own_;
    std::unique_ptr<StreamReader> stream_;
    std::unique_ptr<IndexedReader> tail_;
    GatherParcel gathered_;
    std::vector<std::byte> memory_;
    uint64_t epoch_ = 0, ordinal_ = 0;
  };

  Built built_;
};

}  // namespace

StreamedRef tailed_stream(const Built& built) { return std::make_shared<TailedStream>(built); }

}  // namespace penstock
