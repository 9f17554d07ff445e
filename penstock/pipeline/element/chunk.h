#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/pipeline/element/element.h"
#include "penstock/pipeline/element/origins.h"
#include "penstock/pipeline/element/scratch.h"

namespace penstock {

// What becomes of an element that failed. The first policy that the failure comes to decides; that
// stands for all behind it.
enum class Decision : uint8_t {
  kUndecided,
  kSkip,     // the element is left out, and counted
  kReplace,  // another element stands in its place, and that is counted
  kRaise,    // the exception reaches the consumer
};

// Why an element is lost, and where.
struct Failure {
  std::string stage;  // its title
  uint64_t position = 0;
  std::exception_ptr error;
  Decision decision = Decision::kUndecided;
  bool unlike = false;  // there is nothing wrong with it but that others are of another kind
  // Another time the element may be there: a policy behind left it out, or it cost a worker.
  bool unsure = false;

  // It is only to be counted: nobody is to see a row of it.
  bool settled() const { return decision == Decision::kSkip || decision == Decision::kReplace; }
  // Settles it, if it is not.
  void leave_out() {
    if (!settled()) decision = Decision::kSkip;
  }
};

// What an element fails with that is not like those before it.
Error unlike(const ElementSpec& there, const ElementSpec& here);
// What to do, behind such a message, where lists of different lengths are all that differs.
std::string advice_on_lists(const ElementSpec& there, const ElementSpec& here);

// Up to 64 elements on their way through a chain, column by column. A column is free, and then its
// maker chooses where the rows lie (its own memory, views of a file's buffer or the user's array),
// or it is bound, and then they are written to where they are wanted: a batch's rows. So an element
// is written once, whoever is last.
//
// One thread. Memory comes from `scratch`, which is emptied only after the chunk was used.
class Chunk {
 public:
  static constexpr uint32_t kRows = 64;  // a 64-bit word has a bit for each row

  explicit Chunk(Scratch& scratch) : scratch_(scratch), kept_(scratch) {}
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;

  // All columns free, all rows alive. REQUIRED: rows <= kRows. `spec` nullptr: the spec is inferred
  // from the elements (settle).
  void reset(SpecRef spec, uint32_t rows);
  uint32_t rows() const { return rows_; }
  const SpecRef& spec() const { return spec_; }

  // ---- whoever wants the rows in a certain place

  // Of a fixed leaf, before anything is made.
  void bind(size_t leaf, std::byte* first, uint64_t stride);

  // ---- whoever makes them

  // Adds the spec of an element. The first one is the chunk's spec, if none was given. Later
  // elements may have other lengths, which then become variable in the chunk's spec. False: this
  // element differs from the others.
  bool settle(const SpecRef& spec);
  // An element of this chunk, or of a chunk that this one took notes of, differed from the others:
  // the elements together have another result than each alone.
  bool mixed() const { return mixed_; }
  bool bound(size_t leaf) const { return columns_[leaf].bound; }
  // The spec is inferred from the elements: nothing is bound, and the leaves may be others than the
  // caller expects.
  bool inferred() const { return inferred_; }
  // A fixed leaf's rows to be written, `stride(leaf)` bytes from one to the next.
  std::byte* dense(size_t leaf);
  uint64_t stride(size_t leaf) const { return columns_[leaf].stride; }
  uint64_t row_bytes(size_t leaf) const { return columns_[leaf].row_bytes; }  // of a fixed leaf
  // A row that lies somewhere already; copied if the column is bound. `shape`: of a variable leaf.
  // A free column is all views or all dense.
  void view(size_t leaf, uint32_t row, const std::byte* data, std::span<const int64_t> shape = {});
  // The element is lost; whoever is above decides what becomes of that.
  void fail(uint32_t row, Failure failure);
  // Out of a chunk for good. An exception has one holder from where it is thrown to whoever reads
  // it, so that none is let go of while another thread reads it.
  Failure take_failure(uint32_t row);
  std::vector<Failure> take_notes(uint32_t row);
  // The row is there, but an element was lost on the way to it: replaced by another one, or left
  // out of those that the row was made of.
  void note(uint32_t row, Failure failure) { notes_.emplace_back(row, std::move(failure)); }
  // The row is a record as it was read.
  void come_from(uint32_t row, const Origin& origin) {
    if (origin.file != nullptr) remember_origin(row, origin.file, origin.record);
  }
  void come_from(uint32_t row, const std::shared_ptr<const std::string>& file, uint64_t record) {
    remember_origin(row, file, record);
  }
  // What views point into; until the next reset, or the scratch is emptied. `bytes`: that it has of
  // its own, and of which nobody else says so.
  void keep(std::shared_ptr<void> owner, uint64_t bytes = 0);
  uint64_t kept_bytes() const { return kept_.bytes(); }  // of all that is kept
  // The row, which is alive, is dropped. True: what was lost on the way to it is there in its
  // place, as what failed and nobody is to see.
  bool leave_losses(uint32_t row);
  // The row only says what was lost: it failed, and nobody is to see it. REQUIRED: !lost.empty().
  void lose(uint32_t row, std::vector<Failure> lost);
  // Those rows are none any more; the others move up. REQUIRED: nothing is bound.
  void remove(uint64_t rows);
  // What was lost on the way to rows of `other`, which stand at the same places here. Who makes
  // rows of another chunk's does that, if only for mixed().
  void take_notes_of(Chunk& other);
  // Everything that `other` keeps, for views of it that are handed on, and its notes.
  void keep_all(Chunk& other);

  // ---- whoever reads them

  const std::byte* at(size_t leaf, uint32_t row) const {
    const Column& column = columns_[leaf];
    return column.viewed ? column.at[row] : column.first + row * column.stride;
  }
  // A row's shape: the leaf's own where that is fixed.
  std::span<const int64_t> shape(size_t leaf, uint32_t row) const {
    const Shape& known = spec_->leaves()[leaf].shape;
    if (columns_[leaf].fixed) return known;
    return {columns_[leaf].dims.data() + row * known.size(), known.size()};
  }
  uint64_t bytes(size_t leaf, uint32_t row) const;  // of a row's values
  uint64_t alive() const { return alive_; }         // a bit per row
  bool left_out(uint32_t row) const;                // it failed, and nobody is to see it
  bool sure(uint32_t row) const;                    // nothing that is said of it is unsure
  // Not known of rows that something was made of.
  const Origin& origin(uint32_t row) const {
    return (known_ >> row & 1) != 0 ? origins_[row] : kUnknownOrigin;
  }
  std::vector<std::pair<uint32_t, Failure>>& failures() { return failures_; }
  const std::vector<std::pair<uint32_t, Failure>>& failures() const { return failures_; }
  std::vector<std::pair<uint32_t, Failure>>& notes() { return notes_; }
  const std::vector<std::pair<uint32_t, Failure>>& notes() const { return notes_; }

 private:
  struct Column {
    std::byte* first = nullptr;  // bound, or dense
    uint64_t stride = 0;
    uint64_t row_bytes = 0;
    bool fixed = true;
    bool bound = false;
    bool viewed = false;
    std::vector<int64_t> dims;  // of variable leaves: rows by axes
    std::array<const std::byte*, kRows> at;
  };
  void open_columns();
  void remember_origin(uint32_t row, const std::shared_ptr<const std::string>& file,
                       uint64_t record);
  bool relax(const ElementSpec& other);

  Scratch& scratch_;
  SpecRef spec_;
  bool inferred_ = false;  // spec_ is inferred from the elements so far
  bool mixed_ = false;
  uint32_t rows_ = 0;
  uint64_t alive_ = 0;
  std::vector<Column> columns_;  // by leaf; kept from chunk to chunk
  std::vector<std::pair<uint32_t, Failure>> failures_, notes_;
  Scratch::Kept kept_;
  uint64_t known_ = 0;           // rows that have an origin
  std::vector<Origin> origins_;  // kept from chunk to chunk: mostly it is the same file again
};

}  // namespace penstock
