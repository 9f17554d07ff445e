#include "penstock/pipeline/api/feedable.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/json.h"
#include "penstock/pipeline/element/given.h"

namespace penstock {

void Feedable::add(const std::string& name, Loader loader) {
  (void)utf8_name(name, "Feedable");
  if (!loaders_.emplace(name, std::move(loader)).second) {
    throw Error(Code::kInvalidArgument, "Feedable", "there is a '" + name + "' already");
  }
}

Loader& Feedable::operator[](const std::string& name) {
  const auto found = loaders_.find(name);
  if (found != loaders_.end()) return found->second;
  std::string names;
  for (const auto& [each, loader] : loaders_) names += (names.empty() ? "'" : ", '") + each + "'";
  throw Error(Code::kNotFound, "Feedable", "'" + name + "'; there are " + names);
}

void Feedable::reset(const std::string& name) {
  Loader& loader = (*this)[name];
  // After restore() the first call enters the rest of its pass, and the second one leaves that
  // pass. Otherwise the second call finds the Loader at the start of a pass.
  (void)loader.epoch();
  (void)loader.epoch();
}

void Feedable::reset(const std::string& name, Loader loader) { (*this)[name] = std::move(loader); }

std::string Feedable::state() const {
  nlohmann::json all = nlohmann::json::object();
  for (const auto& [name, loader] : loaders_) {
    all[name] = nlohmann::json::parse(loader.state().to_json());
  }
  return all.dump();
}

void Feedable::restore(const std::string& state) {
  const nlohmann::json all = nlohmann::json::parse(state, nullptr, false);
  bool same = all.is_object() && all.size() == loaders_.size();
  for (const auto& [name, loader] : loaders_) same = same && all.contains(name);
  if (!same) throw refuse_restore("the state has other names than this Feedable");
  std::map<std::string, LoaderState> wanted;
  for (const auto& [name, its] : all.items()) wanted[name] = LoaderState::from_json(its.dump());
  std::vector<std::pair<Loader*, LoaderState>> changed;
  try {
    for (auto& [name, loader] : loaders_) {
      LoaderState before = loader.state();
      loader.restore(wanted[name]);
      changed.emplace_back(&loader, std::move(before));
    }
  } catch (...) {
    for (auto& [loader, before] : changed) loader->restore(before);
    throw;
  }
}

void Feedable::close() {
  for (auto& [name, loader] : loaders_) loader.close();
}

}  // namespace penstock
