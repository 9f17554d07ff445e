#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/json.h"
#include "penstock/pipeline/stages/collate.h"
#include "penstock/pipeline/stages/schema_checker.h"
#include "penstock/pipeline/stages/stream_chunk.h"
#include "penstock/pipeline/streams/streams.h"

namespace penstock {
namespace {

class IndexedStream : public Streamed {
 public:
  explicit IndexedStream(IndexedRef stage) : stage_(std::move(stage)) {}

  SpecRef spec() const override { return stage_->spec(); }
  std::optional<uint64_t> length() const override { return stage_->length(0); }
  bool python() const override { return stage_->python(); }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*stage_, context);
  }

 private:
  class Reader : public ElementReader {
   public:
    Reader(const Indexed& stage, Context& context)
        : stage_(stage), rows_(stage, context), length_(stage.length(0)) {}

    void begin(uint64_t epoch) override {
      epoch_ = epoch;
      next_ = 0;
      rows_.begin();
    }
    uint32_t next(uint32_t most, Chunk& out) override {
      const auto count = static_cast<uint32_t>(std::min<uint64_t>(most, length_ - next_));
      if (count == 0) return 0;
      std::array<uint64_t, Chunk::kRows> positions;
      std::iota(positions.begin(), positions.begin() + count, next_);
      out.reset(stage_.spec(), count);
      rows_.fetch({epoch_, 0}, std::span(positions.data(), count), out, 0);
      next_ += count;
      return count;
    }
    State save() const override {
      State state = {{"index", next_}};
      rows_.save(state);
      return state;
    }
    void load(uint64_t epoch, const State& state) override {
      begin(epoch);
      next_ = count_in(state, "index");
      if (next_ > length_) throw refuse_restore("the state is beyond the source's end");
      rows_.load(state);
    }

   private:
    const Indexed& stage_;
    CheckedRows rows_;
    uint64_t length_, epoch_ = 0, next_ = 0;
  };

  IndexedRef stage_;
};

}  // namespace

StreamedRef indexed_stream(IndexedRef stage) {
  return std::make_shared<IndexedStream>(std::move(stage));
}

const State& member_of(const State& state, const char* name) {
  if (!state.is_object() || !state.contains(name)) {
    throw refuse_restore(std::string("the stream's state has no '") + name + "'");
  }
  return state[name];
}

uint64_t count_in(const State& state, const char* name) {
  const State& member = member_of(state, name);
  // In a state that was never JSON, a 0 is a signed number.
  if (!member.is_number_integer() || (!member.is_number_unsigned() && member.get<int64_t>() < 0)) {
    throw refuse_restore(std::string("'") + name + "' is no count");
  }
  return member.get<uint64_t>();
}

}  // namespace penstock
