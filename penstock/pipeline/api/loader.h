#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/memory/example.h"
#include "penstock/pipeline/element/source.h"
#include "penstock/pipeline/engine/loader_options.h"
#include "penstock/pipeline/engine/loader_state.h"

namespace penstock {

class LoaderEngine;

class Dataset;

// Feeds a dataset: makes its batches on other threads and delivers them in order, as zero-copy
// views. The same contracts as Python's Loader, and the same order for the same seed.
//
//   penstock::Loader feed(dataset, {.batch_size = 64, .shuffle = true, .seed = 7, .workers = 2});
//   for (auto& batch : feed.epoch()) train(batch.at("image"), batch.at("label"));
//   while (auto batch = feed.next()) ...                       // the same for the next epoch
//
// A batch is an Example of tensors with one more axis in front. The tensors are views of a slot and
// share a lease on it: the slot is not overwritten while a copy of any of them exists, also after
// the Loader is destroyed. With batch_size 0 they are the tensors that get() returned; a tensor
// whose memory has other references is copied first.
//
// Errors: an exception of get() is thrown by next() unchanged, at the item's place in the order,
// and failure() returns that place. Errors of penstock are Error: kTimeout, kOutOfMemory, kClosed,
// and kInvalidArgument if the schemas of a batch's samples differ. A sample whose names, dtypes or
// number of axes differ from those of the batch's first sample fails alone, as if get() had thrown.
// Different shapes are an error of the batch, whatever on_error is, because the wrong sample cannot
// be identified. After an exception the position is the failed batch: next() tries it again,
// epoch() begins the next epoch.
//
// Threads: one at a time iterates, restores and asks for state; close, closed, stats, snapshot,
// report and trace may be called from any, also while another is in next().
class Loader {
 public:
  class Batches;

  // Moves or copies the dataset. Errors: kInvalidArgument (options), kOutOfMemory.
  template <IndexedDataset T>
  explicit Loader(T dataset, const LoaderOptions& options = {})
      : Loader(std::make_shared<T>(std::move(dataset)), options) {}
  // Shares the dataset with the caller, who may change it only in the epoch hooks.
  template <IndexedDataset T>
  explicit Loader(std::shared_ptr<T> dataset, const LoaderOptions& options = {})
      : engine_(make_engine(std::make_unique<SourceOf<T>>(std::move(dataset)), options)) {}
  // A pipeline. Its own nodes do batching, shuffling and sharding, so options for these are errors.
  // The same as Dataset::build.
  explicit Loader(const Dataset& dataset, const LoaderOptions& options = {});
  Loader(Loader&&) = default;
  Loader& operator=(Loader&& other) noexcept;
  ~Loader();  // close()

  // One epoch, to iterate over once. If the last epoch was left before its end, this is the one
  // after it; if the position was set by restore() or steps(), this is the rest of its epoch.
  Batches epoch();
  // The next n batches, across the ends of epochs; epoch() afterwards finishes the epoch.
  Batches steps(uint64_t n);
  // The next batch of the current epoch; empty once at its end. The next call begins the next
  // epoch.
  std::optional<Example> next();

  uint64_t size() const;  // batches of a whole epoch; UINT64_MAX: endless
  LoaderState state() const;
  // Error kInvalidArgument: a state of another plan or beyond its end; the text says what is wrong.
  void restore(const LoaderState& state);

  // The place where the last exception of the iteration was thrown.
  std::optional<LoaderFailure> failure() const;
  LoaderStats stats() const;
  Snapshot snapshot() const;
  // Writes one self-contained HTML page: the work of each worker, and the bottleneck. Error
  // kSystem.
  void report(const std::string& path) const;
  // Writes the same events for chrome://tracing and Perfetto. Error kSystem.
  void trace(const std::string& path) const;

  // Ends the workers. Waits until each is done with its item, but no longer than a timeout, if set.
  // Batches that the user holds stay valid; an iteration in progress throws Error kClosed.
  void close();
  bool closed() const;

 private:
  static std::shared_ptr<LoaderEngine> make_engine(std::unique_ptr<Source> source,
                                                   const LoaderOptions& options);
  const std::shared_ptr<LoaderEngine>& engine() const;  // Error kClosed: moved from

  std::shared_ptr<LoaderEngine> engine_;
};

// An input range of batches, made as they are read. restore() ends the range. Error
// kInvalidArgument: it is used after a newer range was begun.
class Loader::Batches {
 public:
  class iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Example;
    using difference_type = std::ptrdiff_t;
    using pointer = Example*;
    using reference = Example&;

    iterator() = default;
    Example& operator*() const { return *range_->batch_; }
    Example* operator->() const { return &*range_->batch_; }
    iterator& operator++() {
      range_->advance();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const iterator& it, std::default_sentinel_t) { return it.over(); }

   private:
    bool over() const { return !range_->batch_.has_value(); }
    friend class Batches;
    explicit iterator(Batches* range) : range_(range) {}
    Batches* range_ = nullptr;
  };

  Batches(Batches&&) = default;  // no copies: a second one would continue into the next epoch
  Batches& operator=(Batches&&) = default;

  iterator begin() & {
    if (!begun_) advance();
    return iterator(this);
  }
  iterator begin() && = delete;  // the iterator would outlive its range
  std::default_sentinel_t end() const { return {}; }

 private:
  friend class Loader;
  Batches(std::shared_ptr<LoaderEngine> engine, uint64_t serial, std::optional<uint64_t> left)
      : engine_(std::move(engine)), serial_(serial), left_(left) {}
  void advance();

  std::shared_ptr<LoaderEngine> engine_;
  uint64_t serial_;
  std::optional<uint64_t> left_;  // of steps(n)
  bool begun_ = false;
  bool gave_all_ = false;
  std::optional<Example> batch_;
};

}  // namespace penstock
