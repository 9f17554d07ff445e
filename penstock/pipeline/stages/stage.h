#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "penstock/base/json.h"
#include "penstock/pipeline/element/chunk.h"
#include "penstock/pipeline/stages/context.h"

namespace penstock {

// The length of a stage that never ends.
inline constexpr uint64_t kEndless = UINT64_MAX;

// Makes elements of one stage by their positions. One thread.
class IndexedReader {
 public:
  virtual ~IndexedReader() = default;
  // Makes the elements at `positions` of at.epoch, in any order, into rows row, row + 1, ... of
  // `out`. Errors of one element are reported by out.fail(). Throw only what ends the ticket: no
  // memory, closed, a broken plan. REQUIRED: at most Chunk::kRows positions, each below the length.
  virtual void fetch(const At& at, std::span<const uint64_t> positions, Chunk& out,
                     uint32_t row) = 0;
};

// A stage that can make any element without those before it. Immutable: any thread.
class Indexed {
 public:
  virtual ~Indexed() = default;
  // Number of elements of an epoch that is entered at `base` (At::base), or kEndless.
  virtual uint64_t length(uint64_t base) const = 0;
  // nullptr: the spec is inferred from the first element, in the worker.
  virtual SpecRef spec() const = 0;
  // This stage or one below it runs user code, inflates or decodes. Such work must not run in a
  // thread that others wait for.
  virtual bool costly() const = 0;
  // Elements may be made in the batch itself: what makes them does not call the user's code, which
  // may take any time.
  virtual bool in_place() const { return !costly(); }
  // The stage calls Python, so it must run on one of Python's threads.
  virtual bool python() const { return false; }
  // The decision on elements of this stage whose schema turns out later to differ from the
  // stream's. It is that of the last policy, or kUndecided if user code changed the elements after
  // that policy.
  virtual Decision decision() const { return Decision::kUndecided; }
  // The origin of an element, for errors: "train.tfrecord, record 17". Empty: no file, or several.
  // `context`: of the reader that has just made the element. REQUIRED: position is below the
  // length.
  virtual std::string origin(const Context& context, const At& at, uint64_t position) const {
    return (void)context, (void)at, (void)position, std::string();
  }
  // Where the blocks end that the stage reads as a whole (row groups, chunks), ascending; the last
  // one is the length. Empty: it has none.
  virtual std::vector<uint64_t> blocks() const { return {}; }
  // The element's index in the user's data set; nothing: the element is identified by its position
  // in the stage. REQUIRED: position is below the length.
  virtual std::optional<uint64_t> index(const At& at, uint64_t position) const {
    return (void)at, (void)position, std::nullopt;
  }
  virtual std::unique_ptr<IndexedReader> reader(Context& context) const = 0;
  // A reader(), whose time and rows are counted for this stage if the context has a clock. Stages
  // open their inputs with this.
  std::unique_ptr<IndexedReader> open(Context& context) const;
};
using IndexedRef = std::shared_ptr<const Indexed>;

// A stage that only maps its positions to positions of its input: take, skip, shuffle, shard,
// repeat.
class IndexMapped : public Indexed {
 public:
  explicit IndexMapped(IndexedRef input) : input_(std::move(input)) {}

  // Maps leading positions in place, as many as fall into one epoch of the input, and sets `at` to
  // that epoch. Returns their number: all of them, unless `repeat` begins a new round among them.
  virtual uint32_t map(At& at, std::span<uint64_t> positions) const = 0;

  const IndexedRef& input() const { return input_; }
  SpecRef spec() const override { return input_->spec(); }
  bool costly() const override { return input_->costly(); }
  bool in_place() const override { return input_->in_place(); }
  bool python() const override { return input_->python(); }
  Decision decision() const override { return input_->decision(); }
  std::string origin(const Context& context, const At& at, uint64_t position) const override;
  std::optional<uint64_t> index(const At& at, uint64_t position) const override;
  std::unique_ptr<IndexedReader> reader(Context& context) const override;

 private:
  IndexedRef input_;
};

// Reads the elements of a stage in order. One thread.
class ElementReader {
 public:
  virtual ~ElementReader() = default;
  virtual void begin(uint64_t epoch) = 0;  // starts at the epoch's first element
  // Makes 1 to `most` further elements as rows 0, 1, ... of `out`, which it resets. The rows are
  // valid until the next call. 0: the end. A failed element (out.fail()) counts as a row, and the
  // stream goes on after it. A dropped element counts as a row, too, if it reports losses before
  // it. An exception ends the stream at this place. REQUIRED: 1 <= most <= Chunk::kRows.
  virtual uint32_t next(uint32_t most, Chunk& out) = 0;
  // The caller no longer uses the rows of the last next(); their memory can be released.
  virtual void release() {}
  // The place of the next element. Any reader of the stage can load() it.
  virtual State save() const = 0;
  // Error kInvalidArgument: not a state of this stage.
  virtual void load(uint64_t epoch, const State& state) = 0;
};

// A stage whose elements are only known by running it. Immutable: any thread.
class Streamed {
 public:
  virtual ~Streamed() = default;
  virtual SpecRef spec() const = 0;  // nullptr: inferred from the first element
  virtual std::optional<uint64_t> length() const = 0;
  // The reader calls Python, so it must run on one of Python's threads.
  virtual bool python() const = 0;
  virtual std::unique_ptr<ElementReader> reader(Context& context) const = 0;
  // As Indexed::open. The rows of this reader include no skipped elements: see noting_reader.
  std::unique_ptr<ElementReader> open(Context& context) const;
};
using StreamedRef = std::shared_ptr<const Streamed>;

// A stage that reads the elements of one stream in order, and may change their number and order.
class StreamMapped : public Streamed {
 public:
  explicit StreamMapped(StreamedRef input) : input_(std::move(input)) {}

  const StreamedRef& input() const { return input_; }
  SpecRef spec() const override { return input_->spec(); }
  bool python() const override { return input_->python(); }

 private:
  StreamedRef input_;
};

// How a padded batch is padded.
struct Padding;

// A stage that stacks several elements of its input into one: batch, padded_batch, ragged_batch,
// window.
class Collated : public Indexed {
 public:
  explicit Collated(IndexedRef input) : input_(std::move(input)) {}

  virtual uint64_t rows(uint64_t batch, uint64_t base) const = 0;
  virtual uint64_t max_rows() const = 0;
  // Position in the input of a batch's row.
  virtual uint64_t element(uint64_t batch, uint64_t row, uint64_t base) const = 0;
  // Elements of the input may differ in length; if false, that is an error.
  virtual bool ragged() const { return false; }
  virtual const Padding* padding() const { return nullptr; }  // nullptr: none

  const IndexedRef& input() const { return input_; }
  bool costly() const override { return input_->costly(); }
  bool python() const override { return input_->python(); }
  // For a batch that is an element of further stages; a column whose rows differ in size is then
  // one leaf (LeafKind::kColumn). Not called for a batch that is delivered: workers write its
  // elements straight into the batch's slot.
  SpecRef spec() const override;
  std::unique_ptr<IndexedReader> reader(Context& context) const override;

 private:
  IndexedRef input_;
};

// Reads the input at the positions that `map` returns. `map` is as IndexMapped::map, but belongs to
// one reader, so it may cache work between chunks. One thread.
template <class Map>
class MappedReader : public IndexedReader {
 public:
  MappedReader(Map map, std::unique_ptr<IndexedReader> input)
      : map_(std::move(map)), input_(std::move(input)) {}

  void fetch(const At& at, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
    std::array<uint64_t, Chunk::kRows> mapped;
    std::copy(positions.begin(), positions.end(), mapped.begin());
    for (std::span<uint64_t> left(mapped.data(), positions.size()); !left.empty();) {
      At there = at;
      uint32_t count = map_(there, left);
      input_->fetch(there, left.first(count), out, row);
      left = left.subspan(count);
      row += count;
    }
  }

 private:
  Map map_;
  std::unique_ptr<IndexedReader> input_;
};

template <class Map>
std::unique_ptr<IndexedReader> mapped_reader(Map map, std::unique_ptr<IndexedReader> input) {
  return std::make_unique<MappedReader<Map>>(std::move(map), std::move(input));
}

// The result of building a node. Either an indexed stage; or a stream, which the stream reader
// reads, with an indexed tail, which tickets apply to the stream's elements.
struct Built {
  IndexedRef indexed = nullptr;
  StreamedRef stream = nullptr;
  IndexedRef tail = nullptr;  // never null beside `stream`
  uint64_t per_output = 1;    // stream elements per element of the tail
  bool drop_partial = false;  // fewer than per_output elements at the end are dropped
  bool may_fail = false;      // the tail has a function, which may fail for an element
  bool may_skip = false;      // the tail may fail, and has an on_error that skips such an element

  // For a stage that makes each element of one input element: puts `stage` on top.
  Built with(const std::function<IndexedRef(IndexedRef)>& stage) const;
  static Built of(StreamedRef stream);
  // The indexed stage on top: the tail, if there is a stream.
  const Indexed& chain() const { return stream == nullptr ? *indexed : *tail; }
};

// The handling of failed elements of a stream. The next on_error after the failing stage decides
// it, or else the feed.
struct FailurePolicy {
  bool skip = false;        // failed elements are skipped; else the exception is raised
  bool feed_skips = false;  // the feed skips failures that no on_error decides
  // An on_error decides, with no cache between the failing stage and it: the decision is the same
  // for every feed.
  bool sure = false;
  bool by_feed = true;  // no on_error decides
};

}  // namespace penstock
