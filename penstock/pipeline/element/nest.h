#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "penstock/pipeline/element/element.h"

namespace penstock {

// The spec of elements that stand side by side: a dict of them by `names`, or, without names, a
// tuple, whose parts are called "0", "1", ... Leaves get "name/" in front; the leaf of an element
// that is one value is just called `name`. Error kInvalidArgument: leaves whose names are then
// equal.
//
// A nest is written as
//
//   nest   := ""                          a dict of the leaves by their names
//           | node
//   node   := '.'                         the next leaf
//           | '(' node* ')'               a tuple
//           | '{' (string node)* '}'      a dict, its keys in this order
//           | ...                         others, which come from Python and are kept as they are
//   string := bytes in decimal, ':', UTF-8
SpecRef side_by_side(std::span<const SpecRef> specs, const std::vector<std::string>& names);

// The spec of elements of `whole` in which an element of `part` stands in a leaf's place. Its
// leaves get the leaf's name and a '/' in front; where the leaf is all of the element, it is
// `part`. Error kInvalidArgument: leaves whose names are then equal.
SpecRef with_leaf_replaced(const ElementSpec& whole, size_t leaf, const ElementSpec& part);

}  // namespace penstock
