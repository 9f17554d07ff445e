#include "penstock/pipeline/api/feeds.h"

#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/pipeline/engine/loader_engine.h"
#include "penstock/pipeline/stages/losses.h"

namespace penstock {
namespace {

uint64_t bytes_of(const Example& batch) {
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : batch) bytes += tensor.nbytes();
  return bytes;
}

class EngineSource : public FeedsHub::Source {
 public:
  EngineSource(std::shared_ptr<LoaderEngine> engine, uint64_t rounds)
      : engine_(std::move(engine)), rounds_(rounds) {}

  void begin_pass() override { engine_->begin_epoch(); }
  FeedsHub::Pulled pull() override {
    try {
      auto batch = engine_->next();
      if (!batch) return {};
      const uint64_t bytes = bytes_of(*batch);
      return {FeedsHub::Item{std::make_shared<Example>(std::move(*batch)), bytes}, nullptr, {}};
    } catch (...) {
      if (engine_->closed()) throw;
      return {std::nullopt, std::current_exception(), text_of(std::current_exception())};
    }
  }
  FeedsHub::Place place() override { return FeedsHub::place_at(engine_->state(), rounds_); }
  void restore(const LoaderState& state) override { engine_->restore(state); }
  void close() override { engine_->close(); }
  ByteBudget& budget() override { return engine_->budget(); }

 private:
  std::shared_ptr<LoaderEngine> engine_;
  uint64_t rounds_;
};

}  // namespace

Feeds::Feeds(const Dataset& dataset, uint32_t n, const LoaderOptions& options,
             std::optional<std::chrono::nanoseconds> patience) {
  auto plan = std::make_shared<const Plan>(*dataset.node(), options.on_error == OnError::kSkip);
  LoaderOptions ordered = options;
  ordered.ordered = true;
  engine_ = std::make_shared<LoaderEngine>(plan, ordered);
  FeedsHub::Options of;
  of.consumers = n;
  of.most = plan->queue().value_or(options.max_queue_size.value_or(Tuner::Settings().queue));
  if (patience) of.patience_ns = patience->count();
  hub_ = std::make_shared<FeedsHub>(std::make_unique<EngineSource>(engine_, plan->rounds()), of);
  for (uint32_t number = 0; number < n; ++number) feeds_.push_back(Feed(hub_, number));
}

Feeds::~Feeds() {
  if (hub_ != nullptr) close();
}

void Feeds::close() { hub_->close(); }

LoaderStats Feeds::stats() const { return engine_->stats(); }

Feeds::Feed& Feeds::operator[](uint32_t number) {
  if (number >= size()) {
    throw Error(Code::kInvalidArgument, "feeds",
                "consumer " + std::to_string(number) + " of " + std::to_string(size()));
  }
  return feeds_[number];
}

std::optional<Example> Feeds::Feed::next() {
  FeedsHub::Item item;
  if (hub_->next(number_, -1, item) == FeedsHub::Next::kEnd) return std::nullopt;
  return std::move(*static_cast<Example*>(item.value.get()));
}

}  // namespace penstock
