#include "penstock/pipeline/streams/likeness.h"

#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "penstock/base/base64.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/stages/restore_error.h"
#include "penstock/pipeline/streams/hidden_leaf.h"
#include "penstock/pipeline/streams/stream_input.h"

namespace penstock {

void Likeness::begin() {
  alike_.reset();
  checked_.reset();
}

void Likeness::check(const SpecRef& spec) {
  if (known_ || spec == checked_) return;
  if (!alike_) {
    alike_ = *spec;
  } else if (*spec != *alike_) {
    std::optional<ElementSpec> both = alike_->merged(*spec);
    if (!both) {
      throw Error(Code::kInvalidArgument, "element",
                  "elements of one stream must be alike: there are " + shown(*alike_) + " and " +
                      shown(*spec));
    }
    alike_ = std::move(both);
  }
  checked_ = spec;
}

void Likeness::pass(Chunk& in, uint32_t from, Chunk& out, uint32_t to, std::string_view stage,
                    uint64_t position) {
  try {
    if ((in.alive() >> from & 1) != 0) check(in.spec());
    pass_row(in, from, out, to);
  } catch (const Error& error) {
    if (error.code() != Code::kInvalidArgument) throw;
    for (Failure& lost : in.take_notes(from)) out.note(to, std::move(lost));
    out.fail(to, {std::string(stage), position, std::current_exception()});
  }
}

void Likeness::save(State& state) const {
  if (alike_) state["alike"] = to_base64(alike_->bytes());
}

void Likeness::load(const State& state) {
  begin();
  if (known_ || !state.contains("alike")) return;
  try {
    alike_.emplace(std::span<const std::byte>(from_base64(state["alike"].get<std::string>())));
  } catch (const State::exception&) {
    throw refuse_restore("'alike' is no text");
  } catch (const Error&) {
    throw refuse_restore("'alike' does not say what elements are");
  }
}

AlikeRows::AlikeRows(const Indexed& stage, Context& context)
    : spec_(stage.spec()), reader_(stage.open(context)), made_(context.scratch), likeness_(spec_) {}

void AlikeRows::fetch(const At& at, std::span<const uint64_t> positions, Chunk& out, uint32_t row) {
  if (spec_ != nullptr) return reader_->fetch(at, positions, out, row);
  make(at, positions, row);
  if (!made_.mixed()) return hand_on(positions, out, row);
  for (size_t i = 0; i < positions.size(); ++i) {
    make(at, positions.subspan(i, 1), row + static_cast<uint32_t>(i));
    hand_on(positions.subspan(i, 1), out, row + static_cast<uint32_t>(i));
  }
}

// In the same places as they will have, for whoever watches over them.
void AlikeRows::make(const At& at, std::span<const uint64_t> positions, uint32_t row) {
  made_.reset(nullptr, static_cast<uint32_t>(row + positions.size()));
  reader_->fetch(at, positions, made_, row);
}

void AlikeRows::hand_on(std::span<const uint64_t> positions, Chunk& out, uint32_t row) {
  for (const uint64_t position : positions) {
    likeness_.pass(made_, row, out, row, "stream", position);
    ++row;
  }
  out.keep_all(made_);
}

}  // namespace penstock
