#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "penstock/pipeline/element/element.h"

namespace penstock {

// How the elements of a batch are made equally long. A value.
struct Padding {
  using Value = std::variant<int64_t, double>;
  struct Field {
    std::string name;
    // Of a row; -1: as long as the longest of the batch. None: all are.
    std::optional<Shape> shape = std::nullopt;
    Value value = int64_t{0};  // what it is filled up with
  };
  std::vector<Field> fields;  // the others are filled up with zeros to the longest

  // The same by leaf, for elements of one spec.
  struct Column {
    Shape shape;
    std::vector<std::byte> value;  // one of the leaf's dtype
  };
  // Error kInvalidArgument: there is no such field, its axes are others, its dtype does not have
  // the value.
  std::vector<Column> columns(const ElementSpec& spec) const;

  static std::string text_of(const Value& value);
};

}  // namespace penstock
