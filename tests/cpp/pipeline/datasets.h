#pragma once

// Datasets that the tests of the C++ Loader feed.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "penstock/pipeline/api/loader.h"

namespace penstock::testing {

inline Tensor scalar(int64_t value) {
  Tensor tensor = Tensor::make(DType::kInt64, {});
  tensor.as_span<int64_t>()[0] = value;
  return tensor;
}

inline Tensor filled(Shape shape, float value) {
  Tensor tensor = Tensor::make(DType::kFloat32, std::move(shape));
  for (float& x : tensor.as_span<float>()) x = value;
  return tensor;
}

// The int64 column of a batch, as numbers.
inline std::vector<int64_t> numbers(const Example& batch, std::string_view name = "index") {
  auto span = batch.at(name).as_span<const int64_t>();
  return {span.begin(), span.end()};
}

// 0, 1, ... n - 1
inline std::vector<int64_t> iota(int64_t n) {
  std::vector<int64_t> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

using Batches = std::vector<std::vector<int64_t>>;

// The int64 columns of an epoch's batches.
inline Batches take_epoch(Loader& feed, std::string_view name = "index") {
  Batches all;
  for (auto& batch : feed.epoch()) all.push_back(numbers(batch, name));
  return all;
}

inline std::vector<int64_t> flat(const Batches& batches) {
  std::vector<int64_t> all;
  for (const auto& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

// Numbers of workers; a Loader's results must be the same for all.
inline constexpr uint32_t kWorkers[] = {0, 1, 2, 4};

inline Example item(uint64_t index) { return {{"index", scalar(static_cast<int64_t>(index))}}; }

// Samples with their index: {index, x: 3 floats, draw: a random number of the sample}.
class NumberedSamples {
 public:
  explicit NumberedSamples(uint64_t length) : length_(length) {}
  uint64_t size() const { return length_; }
  Example get(uint64_t index, SampleContext& context) const {
    return {{"index", scalar(static_cast<int64_t>(index))},
            {"x", filled({3}, static_cast<float>(index))},
            {"draw", scalar(static_cast<int64_t>(context.rng().next_u32()))}};
  }

 private:
  uint64_t length_;
};

// A dataset whose samples are made by a function.
class Made {
 public:
  using Get = std::function<Example(uint64_t, SampleContext&)>;
  Made(uint64_t length, Get get) : length_(length), get_(std::move(get)) {}
  uint64_t size() const { return length_; }
  Example get(uint64_t index, SampleContext& context) const { return get_(index, context); }

 private:
  uint64_t length_;
  Get get_;
};

// A one-time event that threads wait for.
class Gate {
 public:
  void open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
    --waiting_;
  }
  void until_waiting(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int waiting_ = 0;
};

}  // namespace penstock::testing
