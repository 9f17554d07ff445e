#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "penstock/pipeline/element/element.h"

namespace penstock {

// The spec of several elements combined: a dict keyed by `names`, or a tuple with the keys "0",
// "1", ... if there are no names. Leaf names get the prefix "name/"; the leaf of a single value is
// called `name`. Error kInvalidArgument: two leaves would get the same name.
//
// The grammar of a nest:
//
//   nest   := ""                          a dict of the leaves by their names
//           | node
//   node   := '.'                         the next leaf
//           | '(' node* ')'               a tuple
//           | '{' (string node)* '}'      a dict, its keys in this order
//           | ...                         node types of Python, kept unchanged
//   string := bytes in decimal, ':', UTF-8
SpecRef combined_spec(std::span<const SpecRef> specs, const std::vector<std::string>& names);

// The spec of `whole` after one leaf is replaced by an element of `part`. The leaves of `part` get
// the prefix "name/", with the replaced leaf's name. If `whole` is a single value, the result is
// `part`. Error kInvalidArgument: two leaves would get the same name.
SpecRef with_leaf_replaced(const ElementSpec& whole, size_t leaf, const ElementSpec& part);

}  // namespace penstock
