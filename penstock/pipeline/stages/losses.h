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

// "what()" of an exception.
std::string text_of(const std::exception_ptr& error);
// What is counted of an element that is left out: the stage, if it has a name, and that text.
std::string reason_of(const Failure& lost);

// What was lost on the way to an element (Chunk::note), written down: [[stage, position, text,
// replaced], ...]. Of the exceptions there is what they say.
State state_of_losses(const std::vector<Failure>& losses);
// Error kInvalidArgument: they are none.
std::vector<Failure> losses_in(const State& state);

// The same as UTF-8, of a row that is there, or that only says what was lost; "": nothing was.
std::string text_of_losses(const Chunk& in, uint32_t row);
// Error kDataLoss: it is none.
std::vector<Failure> losses_in_text(std::span<const std::byte> text);

}  // namespace penstock
