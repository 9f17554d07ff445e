#include "penstock/pipeline/nest.h"

#include <utility>

namespace penstock {
namespace {

void add_string(std::string& nest, const std::string& text) {
  nest += std::to_string(text.size()) + ":" + text;
}

// One value: by its nest, or a leaf without a name.
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

}  // namespace

SpecRef side_by_side(std::span<const SpecRef> specs, const std::vector<std::string>& names) {
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

}  // namespace penstock
