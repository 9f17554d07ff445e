#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "penstock/pipeline/element/element.h"

namespace penstock {

// How the elements of a batch are padded to one shape. A value.
struct Padding {
  using Value = std::variant<int64_t, double>;
  struct Field {
    std::string name;
    // The shape of a padded row; -1: the longest length in the batch. None: -1 for all axes.
    std::optional<Shape> shape = std::nullopt;
    Value value = int64_t{0};  // the padding value
  };
  std::vector<Field> fields;  // other fields are padded with zeros to the longest length

  // A Field resolved for one leaf of a spec.
  struct Column {
    Shape shape;
    std::vector<std::byte> value;  // one value of the leaf's dtype
  };
  // One Column per leaf. Error kInvalidArgument: a field does not exist, its shape cannot be padded
  // to that shape, or its dtype cannot represent the padding value.
  std::vector<Column> columns(const ElementSpec& spec) const;

  static std::string text_of(const Value& value);
};

}  // namespace penstock
