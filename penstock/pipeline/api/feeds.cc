#include "penstock/pipeline/api/feeds.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/json.h"
#include "penstock/base/os.h"
#include "penstock/pipeline/element/given.h"
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

void Feedable::add(const std::string& name, Loader loader) {
  (void)utf8_name(name, "Feedable");
  if (!loaders_.emplace(name, std::move(loader)).second) {
    throw Error(Code::kInvalidArgument, "Feedable", "there is a '" + name + "' already");
  }
}

Loader& Feedable::operator[](const std::string& name) {
  const auto found = loaders_.find(name);
  if (found != loaders_.end()) return found->second;
  std::string names;
  for (const auto& [each, loader] : loaders_) names += (names.empty() ? "'" : ", '") + each + "'";
  throw Error(Code::kNotFound, "Feedable", "'" + name + "'; there are " + names);
}

void Feedable::reset(const std::string& name) {
  Loader& loader = (*this)[name];
  // After restore() the first call enters the rest of its pass, and the second one leaves that
  // pass. Otherwise the second call finds the Loader at the start of a pass.
  (void)loader.epoch();
  (void)loader.epoch();
}

void Feedable::reset(const std::string& name, Loader loader) { (*this)[name] = std::move(loader); }

std::string Feedable::state() const {
  nlohmann::json all = nlohmann::json::object();
  for (const auto& [name, loader] : loaders_) {
    all[name] = nlohmann::json::parse(loader.state().to_json());
  }
  return all.dump();
}

void Feedable::restore(const std::string& state) {
  const nlohmann::json all = nlohmann::json::parse(state, nullptr, false);
  bool same = all.is_object() && all.size() == loaders_.size();
  for (const auto& [name, loader] : loaders_) same = same && all.contains(name);
  if (!same) throw refuse_restore("the state has other names than this Feedable");
  std::map<std::string, LoaderState> wanted;
  for (const auto& [name, its] : all.items()) wanted[name] = LoaderState::from_json(its.dump());
  std::vector<std::pair<Loader*, LoaderState>> changed;
  try {
    for (auto& [name, loader] : loaders_) {
      LoaderState before = loader.state();
      loader.restore(wanted[name]);
      changed.emplace_back(&loader, std::move(before));
    }
  } catch (...) {
    for (auto& [loader, before] : changed) loader->restore(before);
    throw;
  }
}

void Feedable::close() {
  for (auto& [name, loader] : loaders_) loader.close();
}

}  // namespace penstock
