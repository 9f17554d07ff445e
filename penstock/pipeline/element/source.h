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

// Passed to a dataset's get(): the sample to make and its random numbers. One thread, valid for one
// call.
class SampleContext {
 public:
  SampleContext(const RandomKey& key, uint32_t worker) : key_(key), worker_(worker), rng_(key) {}

  uint64_t epoch() const { return key_.epoch; }
  uint64_t index() const { return key_.index; }
  uint32_t worker() const { return worker_; }

  // The random numbers of this sample in this epoch. They do not depend on the number of workers,
  // and repeat when the sample is made again.
  RandomStream& rng() { return rng_; }
  // Independent random streams, one per random operation on the sample, so that adding an operation
  // does not change the numbers of the others. 0 is the stream of rng() from its start.
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

// A dataset that a Loader can feed: size() items, each available by its index. get() is called from
// several threads at once. Exceptions of get() reach the consumer at the item's position.
//
// on_epoch_begin and on_epoch_end are optional and take the epoch's number or nothing. They run in
// the consumer's thread between epochs, while no worker is in get(); then size() is read again.
template <class T>
concept IndexedDataset = requires(T& dataset, uint64_t index, SampleContext& context) {
  { dataset.size() } -> std::convertible_to<uint64_t>;
  { dataset.get(index, context) } -> std::convertible_to<Example>;
};

// A dataset with its type erased, for the engine.
class Source {
 public:
  virtual ~Source() = default;
  virtual uint64_t size() = 0;
  virtual Example get(uint64_t index, SampleContext& context) = 0;
  virtual bool hooked() const = 0;  // the dataset has on_epoch_begin or on_epoch_end
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
