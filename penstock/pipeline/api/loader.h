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

// Feeds a dataset: makes its batches on other threads and hands them over in order, as zero-copy
// views. The same contracts as Python's Loader, and the same order for the same seed.
//
//   penstock::Loader feed(dataset, {.batch_size = 64, .shuffle = true, .seed = 7, .workers = 2});
//   for (auto& batch : feed.epoch()) train(batch.at("image"), batch.at("label"));
//   while (auto batch = feed.next()) ...                       // the next epoch, written otherwise
//
// A batch is an Example of tensors with one more axis in front. They are views of a slot that is
// leased to them: nothing overwrites it while a copy of any of them exists, also after the Loader
// is gone. With batch_size 0 they are the tensors that get() returned; one whose memory somebody
// else still refers to is copied first.
//
// Errors. What get() throws comes out of next() as it is, at the item's place in the order, and
// failure() says where that was. Penstock's own are Error: kTimeout, kOutOfMemory, kClosed, and
// kInvalidArgument for samples of one batch that are not alike. A sample whose names, dtypes or
// number of axes differ from those of the batch's first sample fails alone, as if get() had thrown.
// Shapes that differ are the batch's error, whatever on_error says: which of them is right cannot
// be known. After any exception the position is the failed batch: next() tries it again, epoch()
// begins the next epoch.
//
// Threads. One at a time iterates, restores and asks for state; close, closed, stats, snapshot,
// report and trace may be called from any, also while another is in next().
class Loader {
 public:
  class Batches;

  // The dataset moves in, or is copied. Errors: kInvalidArgument (options), kOutOfMemory.
  template <IndexedDataset T>
  explicit Loader(T dataset, const LoaderOptions& options = {})
      : Loader(std::make_shared<T>(std::move(dataset)), options) {}
  // The dataset is shared with the caller, who leaves it alone except in the epoch hooks.
  template <IndexedDataset T>
  explicit Loader(std::shared_ptr<T> dataset, const LoaderOptions& options = {})
      : engine_(make_engine(std::make_unique<SourceOf<T>>(std::move(dataset)), options)) {}
  // A pipeline, which says itself how it is batched, shuffled and sharded: those options are
  // errors. Dataset::build is the same.
  explicit Loader(const Dataset& dataset, const LoaderOptions& options = {});
  Loader(Loader&&) = default;
  Loader& operator=(Loader&& other) noexcept;
  ~Loader();  // close()

  // One epoch, to iterate over once. If the last one was left in the middle, this is the one after
  // it; if the position was set by restore() or steps(), this is the rest of its epoch.
  Batches epoch();
  // The next n batches, across the ends of epochs; epoch() afterwards finishes the epoch.
  Batches steps(uint64_t n);
  // The next batch of the epoch that is under way; empty once at its end. The call after that
  // begins the next epoch.
  std::optional<Example> next();

  uint64_t size() const;  // batches of a whole epoch; UINT64_MAX: it never ends
  LoaderState state() const;
  // Error kInvalidArgument: a state of another plan or beyond its end; the text says what is wrong.
  void restore(const LoaderState& state);

  // Where the last exception that came out of the iteration was thrown.
  std::optional<LoaderFailure> failure() const;
  LoaderStats stats() const;
  Snapshot snapshot() const;
  // One self-contained HTML page: what each worker did, and what the bottleneck is. Error kSystem.
  void report(const std::string& path) const;
  // The same events for chrome://tracing and Perfetto. Error kSystem.
  void trace(const std::string& path) const;

  // Ends the workers: waits until each is done with its item, with a timeout at most that long.
  // Batches that are held stay valid; an iteration in progress gets Error kClosed.
  void close();
  bool closed() const;

 private:
  static std::shared_ptr<LoaderEngine> make_engine(std::unique_ptr<Source> source,
                                                   const LoaderOptions& options);
  const std::shared_ptr<LoaderEngine>& engine() const;  // Error kClosed: it was moved from

  std::shared_ptr<LoaderEngine> engine_;
};

// An input range: batches as they come. restore() ends it early; going on with it after a later one
// was begun is Error kInvalidArgument.
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

  Batches(Batches&&) = default;  // no copies: a second one would go on into the next epoch
  Batches& operator=(Batches&&) = default;

  iterator begin() & {
    if (!begun_) advance();
    return iterator(this);
  }
  iterator begin() && = delete;  // the iterator would outlive what it points to
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
