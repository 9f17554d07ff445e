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

// Sets the spec of `out`, or checks that it equals `spec` except for additional variable lengths.
// Error kInvalidArgument: the schemas differ.
void settle_schema(const SpecRef& spec, Chunk& out);

// Makes row `from` of `in` row `to` of `out`: as a view or as its failure, together with its notes.
// Error kInvalidArgument: the row's schema differs from that of the other rows of `out`.
void pass_row(Chunk& in, uint32_t from, Chunk& out, uint32_t to);

// Checks that all elements of a stream or batch have one schema, which is inferred from the first
// element: the same leaves, with lengths that may differ. The inferred schema is part of a stream's
// state, so that the same elements fail wherever reading starts. One thread.
class SchemaChecker {
 public:
  // `known`: the stage's spec; if not null, no schema is inferred. `of`: "stream" or "batch", for
  // errors. `decision`: for elements whose schema differs.
  explicit SchemaChecker(const SpecRef& known, const char* of = "stream",
                         Decision decision = Decision::kUndecided)
      : known_(known != nullptr), of_(of), decision_(decision) {}

  // Infers the schema anew from the next element.
  void begin();
  // Error kInvalidArgument: `spec` differs from that of the elements before.
  void check(const SpecRef& spec);
  // Checks rows of one spec: all of them fail if it differs. position(row) is the row's position.
  template <class Position>
  void hold(Chunk& rows, Position position, std::string_view stage = {});
  // As pass_row; a row that differs becomes a failure at `position`.
  void pass(Chunk& in, uint32_t from, Chunk& out, uint32_t to, uint64_t position,
            std::string_view stage = {});
  // The inferred schema; nullptr: there was no element yet.
  const SpecRef& inferred() const { return inferred_; }
  // A failure with the exception of check(). `stage` empty: `of`.
  Failure failure(uint64_t position, std::exception_ptr error, std::string_view stage = {}) const;

  // Stores the inferred schema in member "alike" of a stage's state: the spec's bytes in base64.
  void save(State& state) const;
  // A state without "alike" is before the first element. Error kInvalidArgument: the member is not
  // a spec.
  void load(const State& state);

 private:
  const bool known_;
  const char* const of_;
  const Decision decision_;
  SpecRef inferred_;
  SpecRef checked_;  // last spec that passed
};

template <class Position>
void SchemaChecker::hold(Chunk& rows, Position position, std::string_view stage) {
  if (rows.alive() == 0) return;
  try {
    check(rows.spec());
  } catch (const Error&) {
    const auto schema_differs = std::current_exception();
    for (uint32_t row = 0; row < rows.rows(); ++row) {
      rows.fail(row, failure(position(row), schema_differs, stage));
    }
  }
}

// Makes elements of an indexed stage for a stream or batch. The result equals that of making each
// element alone, as a stream's workers do. Elements whose schema differs fail. One thread.
class CheckedRows {
 public:
  // `of`: as in SchemaChecker.
  CheckedRows(const Indexed& stage, Context& context, const char* of = "stream");

  void begin() { schema_.begin(); }
  // As IndexedReader::fetch. If the positions are all rows of `out`, `out` may be reset.
  void fetch(const At& at, std::span<const uint64_t> positions, Chunk& out, uint32_t row);
  void save(State& state) const { schema_.save(state); }
  void load(const State& state) { schema_.load(state); }

 private:
  void fetch_all(const At& at, std::span<const uint64_t> positions, Chunk& out);
  void make(const At& at, std::span<const uint64_t> positions, uint32_t row);
  void make_one_by_one(const At& at, std::span<const uint64_t> positions, Chunk& out, uint32_t row);
  void forward(std::span<const uint64_t> positions, Chunk& out, uint32_t row);

  const SpecRef spec_;
  std::unique_ptr<IndexedReader> reader_;
  Chunk made_;
  SchemaChecker schema_;
};

}  // namespace penstock
