#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "penstock/base/random.h"
#include "penstock/memory/example.h"
#include "penstock/pipeline/element/given.h"

namespace penstock {

// What a dataset is told about the sample that it makes. One thread, for one call of get().
class SampleContext {
 public:
  SampleContext(const RandomKey& key, uint32_t worker) : key_(key), worker_(worker), rng_(key) {}

  uint64_t epoch() const { return key_.epoch; }
  uint64_t index() const { return key_.index; }
  uint32_t worker() const { return worker_; }

  // This sample's random numbers in this epoch: the same for any number of workers, and when the
  // sample is made again.
  RandomStream& rng() { return rng_; }
  // More streams, independent of each other: one for each random operation that a sample goes
  // through, so that adding one changes nothing for the others. 0 is rng()'s, from its start.
  RandomStream rng_of(uint32_t operation) const {
    RandomKey key = key_;
    key.operation = operation;
    return RandomStream(key);
  }

 private:
  RandomKey key_;
  uint32_t worker_;
  RandomStream rng_;
};

// What a Loader feeds: size() items, and any of them by its index. get() is called from several
// threads at once. What it throws reaches the consumer at the item's place.
//
// If it has on_epoch_begin or on_epoch_end, taking the epoch's number or nothing, they run in the
// consumer's thread between epochs, while no worker is in get(); then size() is read again.
template <class T>
concept IndexedDataset = requires(T& dataset, uint64_t index, SampleContext& context) {
  { dataset.size() } -> std::convertible_to<uint64_t>;
  { dataset.get(index, context) } -> std::convertible_to<Example>;
};

// A dataset of whatever type, as the engine calls it.
class Source {
 public:
  virtual ~Source() = default;
  virtual uint64_t size() = 0;
  virtual Example get(uint64_t index, SampleContext& context) = 0;
  virtual bool hooked() const = 0;  // it has one of these
  virtual void on_epoch_begin(uint64_t epoch) = 0;
  virtual void on_epoch_end(uint64_t epoch) = 0;
  virtual const std::type_info& type() const = 0;  // of the dataset
};

template <IndexedDataset T>
class SourceOf : public Source {
 public:
  explicit SourceOf(std::shared_ptr<T> dataset)
      : dataset_(given(std::move(dataset), "Loader", "dataset")) {}

  uint64_t size() override { return static_cast<uint64_t>(dataset_->size()); }
  Example get(uint64_t index, SampleContext& context) override {
    return dataset_->get(index, context);
  }
  bool hooked() const override { return kBegins || kEnds; }
  void on_epoch_begin(uint64_t epoch) override {
    if constexpr (requires(T & d) { d.on_epoch_begin(epoch); }) {
      dataset_->on_epoch_begin(epoch);
    } else if constexpr (kBegins) {
      dataset_->on_epoch_begin();
    }
  }
  void on_epoch_end(uint64_t epoch) override {
    if constexpr (requires(T & d) { d.on_epoch_end(epoch); }) {
      dataset_->on_epoch_end(epoch);
    } else if constexpr (kEnds) {
      dataset_->on_epoch_end();
    }
  }
  const std::type_info& type() const override { return typeid(T); }

 private:
  static constexpr bool kBegins = requires(T & d, uint64_t epoch) { d.on_epoch_begin(epoch); }
  || requires(T& d) { d.on_epoch_begin(); };
  static constexpr bool kEnds = requires(T & d, uint64_t epoch) { d.on_epoch_end(epoch); }
  || requires(T& d) { d.on_epoch_end(); };
  std::shared_ptr<T> dataset_;
};

}  // namespace penstock
