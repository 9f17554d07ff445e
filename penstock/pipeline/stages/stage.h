#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "penstock/base/json.h"
#include "penstock/pipeline/element/chunk.h"
#include "penstock/pipeline/stages/context.h"

namespace penstock {

// Of a stage that goes round and round.
inline constexpr uint64_t kEndless = UINT64_MAX;

// Makes elements of one stage by their positions. One thread.
class IndexedReader {
 public:
  virtual ~IndexedReader() = default;
  // Makes the elements at `positions` of at.epoch, in any order, into rows row, row + 1, ... of
  // `out`. What goes wrong with one element is out.fail(); throwing is for what ends the ticket (no
  // memory, closed, a broken plan). REQUIRED: at most Chunk::kRows of them, each below the length.
  virtual void fetch(const At& at, std::span<const uint64_t> positions, Chunk& out,
                     uint32_t row) = 0;
};

// A stage of which any element can be made without those before it. Immutable: any thread.
class Indexed {
 public:
  virtual ~Indexed() = default;
  // Elements of an epoch that is entered at `base` (At::base); kEndless.
  virtual uint64_t length(uint64_t base) const = 0;
  // nullptr: only the first element tells, in the worker.
  virtual SpecRef spec() const = 0;
  // User code, inflating or decoding somewhere below: not to be run while others wait for it.
  virtual bool costly() const = 0;
  // It calls Python, and so runs on one of Python's threads.
  virtual bool python() const { return false; }
  // On an element that turns out, behind this stage, to be unlike those before it: of the last
  // policy, if no user's function made something else of its elements.
  virtual Decision decision() const { return Decision::kUndecided; }
  // Where an element comes from, for who has to say what is wrong with it: "train.tfrecord, record
  // 17". Empty: from no file, or from several. `context`: of the reader that made it, just now.
  // REQUIRED: position is below the length.
  virtual std::string origin(const Context& context, const At& at, uint64_t position) const {
    return (void)context, (void)at, (void)position, std::string();
  }
  // The index in the user's data set that an element has; nothing: it is known by its position in
  // the stage. REQUIRED: position is below the length.
  virtual std::optional<uint64_t> index(const At& at, uint64_t position) const {
    return (void)at, (void)position, std::nullopt;
  }
  virtual std::unique_ptr<IndexedReader> reader(Context& context) const = 0;
  // The same, counted as this stage's time and rows where the context counts: what a stage reads
  // its input by.
  std::unique_ptr<IndexedReader> open(Context& context) const;
};
using IndexedRef = std::shared_ptr<const Indexed>;

// A stage that only says where its elements are in its input: take, skip, shuffle, shard, repeat.
class IndexMapped : public Indexed {
 public:
  explicit IndexMapped(IndexedRef input) : input_(std::move(input)) {}

  // The leading positions of this stage that fall into one epoch of its input become positions
  // there, in place, and `at` that epoch. Returns how many: all of them, save where `repeat` begins
  // a new round among them.
  virtual uint32_t map(At& at, std::span<uint64_t> positions) const = 0;

  const IndexedRef& input() const { return input_; }
  SpecRef spec() const override { return input_->spec(); }
  bool costly() const override { return input_->costly(); }
  bool python() const override { return input_->python(); }
  Decision decision() const override { return input_->decision(); }
  std::string origin(const Context& context, const At& at, uint64_t position) const override;
  std::optional<uint64_t> index(const At& at, uint64_t position) const override;
  std::unique_ptr<IndexedReader> reader(Context& context) const override;

 private:
  IndexedRef input_;
};

// Goes through the elements of a stage from the front. One thread.
class ElementReader {
 public:
  virtual ~ElementReader() = default;
  virtual void begin(uint64_t epoch) = 0;  // at its start
  // 1 to `most` further elements as rows 0, 1, ... of `out`, which it resets; they are valid until
  // the next call. 0: the end. A failed element (out.fail()) counts as a row, and the stream goes
  // on after it. A dropped element counts as a row, too, if it reports losses before it. Throwing
  // ends the stream at this place. REQUIRED: 1 <= most <= Chunk::kRows.
  virtual uint32_t next(uint32_t most, Chunk& out) = 0;
  // The rows of the last next() are not used any more; their memory can be released.
  virtual void release() {}
  // The place of the next element. load() takes it in any reader of the stage.
  virtual State save() const = 0;
  // Error kInvalidArgument: not a state of this stage.
  virtual void load(uint64_t epoch, const State& state) = 0;
};

// A stage of which only running it tells what comes next. Immutable: any thread.
class Streamed {
 public:
  virtual ~Streamed() = default;
  virtual SpecRef spec() const = 0;  // nullptr: only the first element tells
  virtual std::optional<uint64_t> length() const = 0;
  // Its reader calls Python, and so runs on one of Python's threads.
  virtual bool python() const = 0;
  virtual std::unique_ptr<ElementReader> reader(Context& context) const = 0;
  // As Indexed::open. What nobody is to see is no row there: see placed_reader.
  std::unique_ptr<ElementReader> open(Context& context) const;
};
using StreamedRef = std::shared_ptr<const Streamed>;

// How a padded batch is filled up.
struct Padding;

// A stage whose element is several elements of its input, stacked: batch, padded_batch,
// ragged_batch, window.
class Collated : public Indexed {
 public:
  explicit Collated(IndexedRef input) : input_(std::move(input)) {}

  virtual uint64_t rows(uint64_t batch, uint64_t base) const = 0;
  virtual uint64_t most_rows() const = 0;
  // The position of a batch's row in the input.
  virtual uint64_t element(uint64_t batch, uint64_t row, uint64_t base) const = 0;
  // May elements of the input differ in length; else that is an error.
  virtual bool ragged() const { return false; }
  virtual const Padding* padding() const { return nullptr; }  // nullptr: none

  const IndexedRef& input() const { return input_; }
  bool costly() const override { return input_->costly(); }
  bool python() const override { return input_->python(); }
  // Where a batch is what further stages work on. (Where it is what is fed, workers write its
  // elements straight into the batch's slot, and this is not called.) A column whose rows differ in
  // size is one leaf then (LeafKind::kColumn).
  SpecRef spec() const override;
  std::unique_ptr<IndexedReader> reader(Context& context) const override;

 private:
  IndexedRef input_;
};

}  // namespace penstock
