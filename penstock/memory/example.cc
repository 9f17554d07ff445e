#include "penstock/memory/example.h"

#include <algorithm>

#include "penstock/base/error.h"

namespace penstock {

Example::Example(std::initializer_list<Item> items) {
  items_.reserve(items.size());
  for (const auto& [name, tensor] : items) set(name, tensor);
}

void Example::set(std::string name, Tensor tensor) {
  auto same = std::find_if(items_.begin(), items_.end(),
                           [&](const Item& item) { return item.first == name; });
  if (same != items_.end()) {
    same->second = std::move(tensor);
  } else {
    items_.emplace_back(std::move(name), std::move(tensor));
  }
}

const Tensor* Example::find(std::string_view name) const {
  for (const Item& item : items_) {
    if (item.first == name) return &item.second;
  }
  return nullptr;
}

const Tensor& Example::at(std::string_view name) const {
  if (const Tensor* tensor = find(name)) return *tensor;
  std::string names;
  for (const Item& item : items_) names += (names.empty() ? "" : ", ") + item.first;
  throw Error(Code::kNotFound, "Example",
              "no '" + std::string(name) + "' among: " + (names.empty() ? "nothing" : names));
}

}  // namespace penstock
