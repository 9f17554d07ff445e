#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/pipeline/element/element.h"
#include "penstock/pipeline/element/scratch.h"

namespace penstock {

// The file record that an element was read from, for errors that are found later.
struct Origin {
  std::shared_ptr<const std::string> file;  // nullptr: unknown
  uint64_t record = 0;

  std::string text() const;  // "train.tfrecord, record 17"; empty: unknown
};
inline const Origin kUnknownOrigin;

// The origins of a stream chunk's elements, run-length encoded: consecutive records of one file are
// one run. One thread. The bytes:
//
//   u64 runs, u64 names
//   per run: u64 first element, u64 index of the name, u64 record of the first element
//   per name: u64 length
//   the names, zero-padded to a multiple of 8 bytes
class Origins {
 public:
  void clear();
  // Adds the origin of the next element.
  void add(const Origin& origin) {
    const uint64_t element = elements_++;
    if (known_ || origin.file != nullptr) add_run(element, origin);
  }
  // 0: all origins are unknown.
  uint64_t bytes() const;
  void write(std::byte* to) const;
  // The origin of an element as Origin::text(); empty: unknown. REQUIRED: `of` was written by
  // write().
  static std::string text(std::span<const std::byte> of, uint64_t element);

 private:
  struct Run {
    uint64_t first, name, record;
  };
  void add_run(uint64_t element, const Origin& origin);
  uint64_t name_of(const std::shared_ptr<const std::string>& file);

  uint64_t elements_ = 0;
  bool known_ = false;  // of at least one element
  std::vector<Run> runs_;
  std::vector<std::shared_ptr<const std::string>> names_;
  uint64_t names_bytes_ = 0;
};

class BlockLayout;

// The decision on a failed element. The first policy after the failing stage decides; later
// policies do not change the decision.
enum class Decision : uint8_t {
  kUndecided,
  kSkip,     // the element is left out and counted
  kReplace,  // another element takes its place, and the failure is counted
  kRaise,    // the exception reaches the consumer
};

// Why and where an element failed.
struct Failure {
  std::string stage;  // title of the stage
  uint64_t position = 0;
  std::exception_ptr error;
  Decision decision = Decision::kUndecided;
  bool schema_differs = false;  // only its schema differs from that of the other elements
  // A later run may still deliver the element: a later policy skipped it, or it killed
  // its worker.
  bool provisional = false;

  // The failure is only counted; its row is not delivered.
  bool settled() const { return decision == Decision::kSkip || decision == Decision::kReplace; }
  // Decides kSkip unless the failure is settled already.
  void skip_if_undecided() {
    if (!settled()) decision = Decision::kSkip;
  }
};

// The error of an element whose schema (`here`) differs from that of the elements before it
// (`there`).
Error schema_error(const ElementSpec& there, const ElementSpec& here);
// Advice to append to that message if the schemas differ only in the lengths of lists; else empty.
std::string advice_on_lists(const ElementSpec& there, const ElementSpec& here);

// Up to 64 elements on their way through a chain, stored by column. A column is either free or
// bound. The maker of a free column chooses where the rows lie: in its own memory, or as views of a
// file's buffer or a user's array. The rows of a bound column are written to a given place, such as
// a batch. So each element is written only once, by the last stage that makes it.
//
// One thread. Memory comes from `scratch`, which must not be emptied while the chunk is in use.
class Chunk {
 public:
  static constexpr uint32_t kRows = 64;  // a 64-bit word has a bit for each row

  explicit Chunk(Scratch& scratch) : scratch_(scratch), kept_(scratch) {}
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;

  // Makes all columns free and all rows alive. `spec` nullptr: the spec is inferred from the
  // elements (settle). REQUIRED: rows <= kRows.
  void reset(SpecRef spec, uint32_t rows);
  uint32_t rows() const { return rows_; }
  const SpecRef& spec() const { return spec_; }

  // ---- for the caller that says where the rows go

  // Binds the column of a fixed leaf. Call it before any row is made.
  void bind(size_t leaf, std::byte* first, uint64_t stride);

  // ---- for the stage that makes the rows

  // Adds the spec of an element. If no spec was given, the first one becomes the chunk's spec, and
  // axes whose lengths differ in later elements become variable. False: the element's spec does not
  // fit the others.
  bool settle(const SpecRef& spec);
  // Specs differed within this chunk, or within a chunk whose notes it took. The elements then give
  // another result together than each alone.
  bool mixed() const { return mixed_; }
  bool bound(size_t leaf) const { return columns_[leaf].bound; }
  // The spec is inferred from the elements: nothing is bound, and the leaves may differ from those
  // that the caller expects.
  bool inferred() const { return inferred_; }
  // Memory for the rows of a fixed leaf, stride(leaf) bytes apart.
  std::byte* dense(size_t leaf);
  uint64_t stride(size_t leaf) const { return columns_[leaf].stride; }
  uint64_t row_bytes(size_t leaf) const { return columns_[leaf].row_bytes; }  // of a fixed leaf
  // Sets a row to existing memory; copies it if the column is bound. `shape`: of a variable leaf.
  // The rows of a free column are either all views or all dense.
  void view(size_t leaf, uint32_t row, const std::byte* data, std::span<const int64_t> shape = {});
  // Marks the row as failed. The stages above decide how the failure is handled.
  void fail(uint32_t row, Failure failure);
  // Move the failures out of the chunk for good. An exception has one owner at a time from the
  // throw to its reader, so no thread releases it while another thread reads it.
  Failure take_failure(uint32_t row);
  std::vector<Failure> take_notes(uint32_t row);
  // Adds a failure to a row that is alive: a failed element was replaced by this row, or skipped
  // among those that the row was made of.
  void note(uint32_t row, Failure failure) { notes_.emplace_back(row, std::move(failure)); }
  // The row is this record of a file, unchanged.
  void set_origin(uint32_t row, const Origin& origin) {
    if (origin.file != nullptr) remember_origin(row, origin.file, origin.record);
  }
  void set_origin(uint32_t row, const std::shared_ptr<const std::string>& file, uint64_t record) {
    remember_origin(row, file, record);
  }
  // Keeps the owner of memory that views point into until the next reset, or until the scratch is
  // emptied. `bytes`: memory of the owner that is not counted elsewhere.
  void keep(std::shared_ptr<void> owner, uint64_t bytes = 0);
  uint64_t kept_bytes() const { return kept_.bytes(); }  // the sum over all owners
  // For dropping a row that is alive. If the row has notes, it becomes a settled failure that
  // carries them, and the result is true. Else the row is unchanged.
  bool drop_row(uint32_t row);
  // Turns the row into a settled failure that carries `lost`. REQUIRED: !lost.empty().
  void lose(uint32_t row, std::vector<Failure> lost);
  // Removes the rows of this bit mask; later rows move up. REQUIRED: nothing is bound.
  void remove(uint64_t rows);
  // Moves the notes of `other` to the same rows of this chunk, and takes over mixed(). Every stage
  // that makes rows of another chunk's rows calls this, even if there are no notes.
  void move_notes_from(Chunk& other);
  // Keeps all owners that `other` keeps, for stages that pass on views of its rows, and takes its
  // notes.
  void keep_owners_of(Chunk& other);

  // ---- for the reader of the rows

  const std::byte* at(size_t leaf, uint32_t row) const {
    const Column& column = columns_[leaf];
    return column.viewed ? column.at[row] : column.first + row * column.stride;
  }
  // The shape of a row. It is the leaf's own shape if that is fixed.
  std::span<const int64_t> shape(size_t leaf, uint32_t row) const {
    const Shape& known = spec_->leaves()[leaf].shape;
    if (columns_[leaf].fixed) return known;
    return {columns_[leaf].dims.data() + row * known.size(), known.size()};
  }
  uint64_t bytes(size_t leaf, uint32_t row) const;  // bytes of the row's values
  uint64_t alive() const { return alive_; }         // one bit per row
  bool left_out(uint32_t row) const;                // the row is a settled failure
  bool sure(uint32_t row) const;  // none of the row's failures and notes is provisional
  // The record that the row came from. Unknown for rows that were made of other rows.
  const Origin& origin(uint32_t row) const {
    return (known_ >> row & 1) != 0 ? origins_[row] : kUnknownOrigin;
  }
  std::vector<std::pair<uint32_t, Failure>>& failures() { return failures_; }
  const std::vector<std::pair<uint32_t, Failure>>& failures() const { return failures_; }
  std::vector<std::pair<uint32_t, Failure>>& notes() { return notes_; }
  const std::vector<std::pair<uint32_t, Failure>>& notes() const { return notes_; }

 private:
  struct Column {
    std::byte* first = nullptr;  // set if bound or dense
    uint64_t stride = 0;
    uint64_t row_bytes = 0;
    bool fixed = true;
    bool bound = false;
    bool viewed = false;
    std::vector<int64_t> dims;  // of variable leaves: [rows][axes]
    std::array<const std::byte*, kRows> at;
  };
  void open_columns();
  void remember_origin(uint32_t row, const std::shared_ptr<const std::string>& file,
                       uint64_t record);
  bool relax(const ElementSpec& other);

  Scratch& scratch_;
  SpecRef spec_;
  bool inferred_ = false;
  bool mixed_ = false;
  uint32_t rows_ = 0;
  uint64_t alive_ = 0;
  std::vector<Column> columns_;  // by leaf; reused by the next chunk
  std::vector<std::pair<uint32_t, Failure>> failures_, notes_;
  Scratch::Kept kept_;
  uint64_t known_ = 0;           // bit mask of rows with an origin
  std::vector<Origin> origins_;  // reused by the next chunk, since the file is mostly the same
};

// A row of a chunk as a block of one element, for storing it. Block::view reads it back. Padding
// between the columns is zeroed. REQUIRED: the row is alive.
BlockLayout row_layout(const Chunk& in, uint32_t row);
void write_row(const Chunk& in, uint32_t row, const BlockLayout& layout, std::byte* to);

}  // namespace penstock
