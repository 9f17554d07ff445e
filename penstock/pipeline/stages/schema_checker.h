#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "penstock/base/error.h"
#include "penstock/base/json.h"
#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// `out` has that spec, or one that says of more lengths that they differ, or is told it. Error
// kInvalidArgument: its rows are other ones.
void settle_alike(const SpecRef& spec, Chunk& out);

// Row `from` of `in` becomes row `to` of `out`: a view, or, if it failed, its failure. What was
// lost on the way to it goes along, once. Error kInvalidArgument: it is not like `out`'s other
// rows.
void pass_row(Chunk& in, uint32_t from, Chunk& out, uint32_t to);

// What the elements of a stream or batch are where only they tell: like the first one, but for
// lengths. Part of a stream's state, so that the same elements fail wherever it is read from. One
// thread.
class SchemaChecker {
 public:
  // `known`: that the stage says; then there is nothing to be told. `of`: what they are the
  // elements of, for errors. `decision`: on those that are not like the others.
  explicit SchemaChecker(const SpecRef& known, const char* of = "stream",
                         Decision decision = Decision::kUndecided)
      : known_(known != nullptr), of_(of), decision_(decision) {}

  // The next element is the first one.
  void begin();
  // Error kInvalidArgument: an element of that spec is not like those before it.
  void check(const SpecRef& spec);
  // Rows of one kind: all of them fail if they are not like those before them. position(row): its
  // place.
  template <class Position>
  void hold(Chunk& rows, Position position, std::string_view stage = {});
  // As pass_row; a row that is not like those before it becomes one that failed, at that place.
  void pass(Chunk& in, uint32_t from, Chunk& out, uint32_t to, uint64_t position,
            std::string_view stage = {});
  // What they were so far; nullptr: none was there.
  const SpecRef& told() const { return alike_; }
  // Of an element, with what check() threw. `stage` empty: `of`.
  Failure failure(uint64_t position, std::exception_ptr error, std::string_view stage = {}) const;

  // Sets member "alike" of a stage's state, where elements have told: the spec's bytes in base64.
  void save(State& state) const;
  // Error kInvalidArgument: it is none. A state without it is at the first element.
  void load(const State& state);

 private:
  const bool known_;
  const char* const of_;
  const Decision decision_;
  SpecRef alike_;
  SpecRef checked_;  // the last one
};

template <class Position>
void SchemaChecker::hold(Chunk& rows, Position position, std::string_view stage) {
  if (rows.alive() == 0) return;
  try {
    check(rows.spec());
  } catch (const Error&) {
    const auto unlike = std::current_exception();
    for (uint32_t row = 0; row < rows.rows(); ++row) {
      rows.fail(row, failure(position(row), unlike, stage));
    }
  }
}

// Elements of an indexed stage on their way into a stream or batch: as if each of them was made
// alone, as workers make a stream's, and those fail that are not like the ones before them. One
// thread.
class CheckedRows {
 public:
  // `of`: as SchemaChecker.
  CheckedRows(const Indexed& stage, Context& context, const char* of = "stream");

  void begin() { schema_.begin(); }
  // As IndexedReader::fetch. `out` may be reset, if these are all of its rows.
  void fetch(const At& at, std::span<const uint64_t> positions, Chunk& out, uint32_t row);
  void save(State& state) const { schema_.save(state); }
  void load(const State& state) { schema_.load(state); }

 private:
  void fetch_all(const At& at, std::span<const uint64_t> positions, Chunk& out);
  void make(const At& at, std::span<const uint64_t> positions, uint32_t row);
  void make_apart(const At& at, std::span<const uint64_t> positions, Chunk& out, uint32_t row);
  void hand_on(std::span<const uint64_t> positions, Chunk& out, uint32_t row);

  const SpecRef spec_;
  std::unique_ptr<IndexedReader> reader_;
  Chunk made_;
  SchemaChecker schema_;
};

}  // namespace penstock
