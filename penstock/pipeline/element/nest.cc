#include "penstock/pipeline/element/nest.h"

#include <utility>

namespace penstock {
namespace {

void add_string(std::string& nest, const std::string& text) {
  nest += std::to_string(text.size()) + ":" + text;
}

// A single value: its nest says so, or it is one leaf without a name.
bool is_value(const ElementSpec& spec) {
  return spec.leaves().size() == 1 &&
         (spec.nest() == "." || (spec.nest().empty() && spec.leaves()[0].name.empty()));
}

std::string node_of(const ElementSpec& spec) {
  if (is_value(spec)) return ".";
  if (!spec.nest().empty()) return spec.nest();
  std::string nest = "{";
  for (const Leaf& leaf : spec.leaves()) {
    add_string(nest, leaf.name);
    nest += '.';
  }
  return nest + "}";
}

// Position of a leaf's node in the nest. REQUIRED: the nest has more than `leaf` leaves.
size_t place_of_leaf(const std::string& nest, size_t leaf) {
  size_t at = 0;
  for (;; ++at) {
    if (nest.at(at) == '.' && leaf-- == 0) return at;
    if (nest[at] < '0' || nest[at] > '9') continue;
    size_t bytes = 0;  // length of a string, which may contain any characters
    for (; nest.at(at) != ':'; ++at) bytes = bytes * 10 + static_cast<size_t>(nest[at] - '0');
    at += bytes;
  }
}

}  // namespace

SpecRef combined_spec(std::span<const SpecRef> specs, const std::vector<std::string>& names) {
  std::vector<Leaf> leaves;
  std::string nest = names.empty() ? "(" : "{";
  bool flat = !names.empty();
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::string name = names.empty() ? std::to_string(i) : names[i];
    const bool value = is_value(*specs[i]);
    flat &= value;
    for (Leaf leaf : specs[i]->leaves()) {
      leaf.name = value ? name : name + "/" + leaf.name;
      leaves.push_back(std::move(leaf));
    }
    if (!names.empty()) add_string(nest, names[i]);
    nest += node_of(*specs[i]);
  }
  nest += names.empty() ? ")" : "}";
  return std::make_shared<ElementSpec>(std::move(leaves), flat ? std::string() : std::move(nest));
}

SpecRef with_leaf_replaced(const ElementSpec& whole, size_t leaf, const ElementSpec& part) {
  std::vector<Leaf> leaves(whole.leaves().begin(), whole.leaves().end());
  const std::string name = leaves[leaf].name;
  std::string nest = part.nest();
  if (!is_value(whole)) {
    nest = node_of(whole);
    nest.replace(place_of_leaf(nest, leaf), 1, node_of(part));
  }
  leaves.erase(leaves.begin() + static_cast<std::ptrdiff_t>(leaf));
  for (size_t i = 0; i < part.leaves().size(); ++i) {
    Leaf made = part.leaves()[i];
    if (!is_value(whole)) made.name = name + "/" + made.name;
    leaves.insert(leaves.begin() + static_cast<std::ptrdiff_t>(leaf + i), std::move(made));
  }
  return std::make_shared<ElementSpec>(std::move(leaves), std::move(nest));
}

}  // namespace penstock
