#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "penstock/base/json.h"
#include "penstock/pipeline/element/chunk.h"

namespace penstock {

// The text of an exception.
std::string text_of(const std::exception_ptr& error);
// The reason that is counted for a skipped element: the stage's title, if any, and the exception's
// text.
std::string reason_of(const Failure& lost);

// The failures noted on a row (Chunk::note) as a state: [[stage, position, text, replaced], ...].
// Of an exception only its text is kept.
State state_of_losses(const std::vector<Failure>& losses);
// Error kInvalidArgument: not such a state.
std::vector<Failure> losses_in(const State& state);

// The same as UTF-8 text, for a row that is alive or a settled failure; "": no losses.
std::string text_of_losses(const Chunk& in, uint32_t row);
// Error kDataLoss: not such a text.
std::vector<Failure> losses_in_text(std::span<const std::byte> text);

}  // namespace penstock
