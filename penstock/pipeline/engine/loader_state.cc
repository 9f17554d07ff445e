#include "penstock/pipeline/engine/loader_state.h"

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"

namespace penstock {
namespace {

using Json = nlohmann::ordered_json;

Error refuse_state(const std::string& why) {
  return Error(Code::kInvalidArgument, "restore", "this is not a state of a Loader: " + why);
}

// Member `name`; `is` checks its type.
template <class T>
T member(const Json& state, const char* name, bool (Json::*is)() const noexcept) {
  auto found = state.find(name);
  if (found == state.end()) throw refuse_state(std::string("it has no '") + name + "'");
  if (!((*found).*is)()) throw refuse_state(std::string("'") + name + "' is of the wrong type");
  return found->get<T>();
}

uint64_t count(const Json& state, const char* name) {
  return member<uint64_t>(state, name, &Json::is_number_unsigned);
}

// A list; `is` checks the type of its items.
template <class T>
std::vector<T> list(const Json& state, const char* name, bool (Json::*is)() const noexcept) {
  std::vector<T> items;
  for (const Json& item : member<Json>(state, name, &Json::is_array)) {
    if (!(item.*is)())
      throw refuse_state(std::string("'") + name + "' has an item of the wrong type");
    items.push_back(item.get<T>());
  }
  return items;
}

}  // namespace

std::string LoaderState::to_json() const {
  Json state = {{"version", kVersion},
                {"epoch", epoch},
                {"batches", batches},
                {"ahead", ahead},
                {"seed", seed}};
  state["length"] = length;
  state["plan"] = plan;
  if (!stream.empty()) state["stream"] = Json::parse(stream);
  if (world != 1) {
    state["world"] = world;
    state["base"] = base;
  }
  return state.dump();
}

LoaderState LoaderState::from_json(std::string_view text) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) throw refuse_state("it is no JSON object");
  if (count(json, "version") != kVersion) throw refuse_state("it is of another version");
  LoaderState state;
  state.epoch = count(json, "epoch");
  state.batches = count(json, "batches");
  state.ahead = list<uint64_t>(json, "ahead", &Json::is_number_unsigned);
  state.length = count(json, "length");
  state.seed = count(json, "seed");
  state.plan = list<std::string>(json, "plan", &Json::is_string);
  if (state.plan.empty()) throw refuse_state("'plan' is empty");
  if (json.contains("stream") && !json["stream"].is_null()) state.stream = json["stream"].dump();
  if (json.contains("world")) {
    const uint64_t world = count(json, "world");
    state.base = count(json, "base");
    if (world == 0 || world > UINT32_MAX || state.base > state.batches) {
      throw refuse_state("'world' and 'base' cannot be");
    }
    state.world = static_cast<uint32_t>(world);
  }
  return state;
}

}  // namespace penstock
