// Readers that count the time and rows of their stage.
#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/pipeline/stages/stage.h"
#include "penstock/pipeline/stages/stage_clock.h"
#include "penstock/pipeline/streams/streams.h"

namespace penstock {
namespace {

class MeasuredIndexed : public IndexedReader {
 public:
  MeasuredIndexed(StageClock& clock, uint32_t stage, std::unique_ptr<IndexedReader> reader)
      : clock_(clock), stage_(stage), reader_(std::move(reader)) {}

  void fetch(const At& at, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
    StageClock::Within within(clock_, stage_);
    reader_->fetch(at, positions, out, row);
    clock_.count(stage_, positions.size());
  }

 private:
  StageClock& clock_;
  uint32_t stage_;
  std::unique_ptr<IndexedReader> reader_;
};

class MeasuredStream : public ElementReader {
 public:
  MeasuredStream(StageClock& clock, uint32_t stage, std::unique_ptr<ElementReader> reader)
      : clock_(clock), stage_(stage), reader_(std::move(reader)) {}

  void begin(uint64_t epoch) override { reader_->begin(epoch); }
  uint32_t next(uint32_t most, Chunk& out) override {
    StageClock::Within within(clock_, stage_);
    const uint32_t rows = reader_->next(most, out);
    clock_.count(stage_, rows);
    return rows;
  }
  void release() override { reader_->release(); }
  State save() const override { return reader_->save(); }
  void load(uint64_t epoch, const State& state) override { reader_->load(epoch, state); }

 private:
  StageClock& clock_;
  uint32_t stage_;
  std::unique_ptr<ElementReader> reader_;
};

template <class Measured, class Stage>
auto opened(const Stage& stage, Context& context) {
  auto reader = stage.reader(context);
  if (context.clock == nullptr) return reader;
  auto number = context.stages->find(&stage);
  if (!number) return reader;
  reader = std::make_unique<Measured>(*context.clock, *number, std::move(reader));
  return reader;
}

}  // namespace

std::unique_ptr<IndexedReader> Indexed::open(Context& context) const {
  return opened<MeasuredIndexed>(*this, context);
}

std::unique_ptr<ElementReader> Streamed::open(Context& context) const {
  return noting_reader(opened<MeasuredStream>(*this, context), context);
}

}  // namespace penstock
