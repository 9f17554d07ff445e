#include "penstock/pipeline/stages/losses.h"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/json.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

State state_of_loss(const Failure& lost) {
  return {lost.stage, lost.position, escape_invalid_utf8(text_of(lost.error)),
          lost.decision == Decision::kReplace};
}

bool is_loss(const State& state) {
  return state.is_array() && state.size() == 4 && state[0].is_string() &&
         state[1].is_number_unsigned() && state[2].is_string() && state[3].is_boolean();
}

}  // namespace

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

std::string reason_of(const Failure& lost) {
  const std::string text = text_of(lost.error);
  return lost.stage.empty() ? text : lost.stage + ": " + text;
}

State state_of_losses(const std::vector<Failure>& losses) {
  State state = State::array();
  for (const Failure& lost : losses) state.push_back(state_of_loss(lost));
  return state;
}

std::vector<Failure> losses_in(const State& state) {
  std::vector<Failure> losses;
  if (!state.is_array()) throw refuse_restore("what was lost is not a list");
  for (const State& lost : state) {
    if (!is_loss(lost)) throw refuse_restore("what was lost is not as it was saved");
    losses.push_back({lost[0].get<std::string>(), lost[1].get<uint64_t>(),
                      std::make_exception_ptr(std::runtime_error(lost[2].get<std::string>())),
                      lost[3].get<bool>() ? Decision::kReplace : Decision::kSkip});
  }
  return losses;
}

std::string text_of_losses(const Chunk& in, uint32_t row) {
  State state = State::array();
  for (const auto* said : {&in.failures(), &in.notes()}) {
    for (const auto& [of, lost] : *said) {
      if (of == row) state.push_back(state_of_loss(lost));
    }
  }
  return state.empty() ? std::string() : state.dump();
}

std::vector<Failure> losses_in_text(std::span<const std::byte> text) {
  if (text.empty()) return {};
  const auto* first = reinterpret_cast<const char*>(text.data());
  const State state = State::parse(first, first + text.size(), nullptr, false);
  try {
    return losses_in(state);
  } catch (const Error&) {
    throw Error(Code::kDataLoss, "losses", "what was lost on the way to it is not said");
  }
}

}  // namespace penstock
