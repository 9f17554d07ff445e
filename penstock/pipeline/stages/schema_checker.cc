#include "penstock/pipeline/stages/schema_checker.h"

#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/json.h"

namespace penstock {

namespace {

// Whether every element of `part` is also an element of `whole`.
bool covers(const ElementSpec& whole, const ElementSpec& part) {
  if (whole.leaves().size() != part.leaves().size() || whole.nest() != part.nest()) return false;
  for (size_t i = 0; i < whole.leaves().size(); ++i) {
    const Leaf &a = whole.leaves()[i], &b = part.leaves()[i];
    if (a.name != b.name || a.kind != b.kind || a.dtype != b.dtype ||
        a.shape.size() != b.shape.size()) {
      return false;
    }
    for (size_t axis = 0; axis < a.shape.size(); ++axis) {
      if (a.shape[axis] >= 0 && a.shape[axis] != b.shape[axis]) return false;
    }
  }
  return true;
}

}  // namespace

void settle_schema(const SpecRef& spec, Chunk& out) {
  if (out.settle(spec) || covers(*out.spec(), *spec)) return;
  throw schema_error(*out.spec(), *spec);
}

void pass_row(Chunk& in, uint32_t from, Chunk& out, uint32_t to) {
  for (Failure& lost : in.take_notes(from)) out.note(to, std::move(lost));
  if ((in.alive() >> from & 1) == 0) return out.fail(to, in.take_failure(from));
  settle_schema(in.spec(), out);
  out.set_origin(to, in.origin(from));
  for (size_t leaf = 0; leaf < in.spec()->leaves().size(); ++leaf) {
    out.view(leaf, to, in.at(leaf, from), in.shape(leaf, from));
  }
}

void SchemaChecker::begin() {
  inferred_.reset();
  checked_.reset();
}

void SchemaChecker::check(const SpecRef& spec) {
  if (known_ || spec == checked_) return;
  if (inferred_ == nullptr) {
    inferred_ = spec;
  } else if (*spec != *inferred_) {
    std::optional<ElementSpec> both = inferred_->merged(*spec);
    if (!both) {
      throw Error(Code::kInvalidArgument, "element",
                  std::string("elements of one ") + of_ + " must be alike: there are " +
                      inferred_->to_string() + " and " + spec->to_string() +
                      advice_on_lists(*inferred_, *spec));
    }
    if (*both != *inferred_) inferred_ = std::make_shared<ElementSpec>(std::move(*both));
  }
  checked_ = spec;
}

Failure SchemaChecker::failure(uint64_t position, std::exception_ptr error,
                               std::string_view stage) const {
  Failure failure{std::string(stage.empty() ? of_ : stage), position, std::move(error)};
  failure.schema_differs = true;
  failure.decision = decision_;
  return failure;
}

void SchemaChecker::pass(Chunk& in, uint32_t from, Chunk& out, uint32_t to, uint64_t position,
                         std::string_view stage) {
  try {
    if ((in.alive() >> from & 1) != 0) check(in.spec());
    pass_row(in, from, out, to);
  } catch (const Error& error) {
    if (error.code() != Code::kInvalidArgument) throw;
    for (Failure& lost : in.take_notes(from)) out.note(to, std::move(lost));
    out.fail(to, failure(position, std::current_exception(), stage));
  }
}

void SchemaChecker::save(State& state) const {
  if (inferred_ != nullptr) state["alike"] = to_base64(inferred_->bytes());
}

void SchemaChecker::load(const State& state) {
  begin();
  if (known_ || !state.contains("alike")) return;
  try {
    inferred_ = std::make_shared<ElementSpec>(
        std::span<const std::byte>(from_base64(state["alike"].get<std::string>())));
  } catch (const State::exception&) {
    throw refuse_restore("'alike' is no text");
  } catch (const Error&) {
    throw refuse_restore("'alike' does not say what elements are");
  }
}

CheckedRows::CheckedRows(const Indexed& stage, Context& context, const char* of)
    : spec_(stage.spec()),
      reader_(stage.open(context)),
      made_(context.scratch),
      schema_(spec_, of, stage.decision()) {}

void CheckedRows::fetch(const At& at, std::span<const uint64_t> positions, Chunk& out,
                        uint32_t row) {
  if (spec_ != nullptr) return reader_->fetch(at, positions, out, row);
  if (positions.size() == out.rows()) return fetch_all(at, positions, out);
  make(at, positions, row);
  made_.mixed() ? make_one_by_one(at, positions, out, row) : forward(positions, out, row);
}

void CheckedRows::fetch_all(const At& at, std::span<const uint64_t> positions, Chunk& out) {
  reader_->fetch(at, positions, out, 0);
  if (out.mixed() && positions.size() > 1) {
    out.reset(nullptr, out.rows());
    return make_one_by_one(at, positions, out, 0);
  }
  schema_.hold(out, [&](uint32_t row) { return positions[row]; });
}

// Uses the final row numbers, because Watch is called with them.
void CheckedRows::make(const At& at, std::span<const uint64_t> positions, uint32_t row) {
  made_.reset(nullptr, static_cast<uint32_t>(row + positions.size()));
  reader_->fetch(at, positions, made_, row);
}

void CheckedRows::make_one_by_one(const At& at, std::span<const uint64_t> positions, Chunk& out,
                                  uint32_t row) {
  for (size_t i = 0; i < positions.size(); ++i, ++row) {
    make(at, positions.subspan(i, 1), row);
    forward(positions.subspan(i, 1), out, row);
  }
}

void CheckedRows::forward(std::span<const uint64_t> positions, Chunk& out, uint32_t row) {
  for (const uint64_t position : positions) {
    schema_.pass(made_, row, out, row, position);
    ++row;
  }
  out.keep_owners_of(made_);
}

}  // namespace penstock
