#include "penstock/pipeline/element/padding.h"

#include <cstdio>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/element/stored_value.h"

namespace penstock {
namespace {

Error refuse_padding(const std::string& why) {
  return {Code::kInvalidArgument, "padded_batch", why};
}

// `value` as one value of the leaf's dtype. It must be exact for integers; floats are rounded.
std::vector<std::byte> stored(const Padding::Value& value, const Leaf& leaf) {
  std::vector<std::byte> bytes(size_of(leaf.dtype));
  if (is_complex(leaf.dtype)) {
    if (value != Padding::Value(int64_t{0})) {
      throw refuse_padding("'" + leaf.name + "' is complex, and is filled up with 0 only");
    }
    return bytes;
  }
  const bool fits = with_stored(leaf.dtype, [&](auto form) {
    using Stored = decltype(form);
    using T = typename Stored::Value;
    return std::visit(
        [&](auto number) {
          using N = decltype(number);
          if constexpr (std::is_floating_point_v<T>) {
            Stored::store(bytes.data(), static_cast<T>(number));
            return true;
          } else if constexpr (std::is_same_v<N, int64_t>) {
            Stored::store(bytes.data(), static_cast<T>(number));
            const auto back = static_cast<N>(Stored::load(bytes.data()));
            return back == number && (number >= 0 || std::is_signed_v<T>);
          } else {
            return false;
          }
        },
        value);
  });
  if (!fits) {
    throw refuse_padding("'" + leaf.name + "' is " + std::string(name_of(leaf.dtype)) +
                         " and cannot be padded with " + Padding::text_of(value));
  }
  return bytes;
}

}  // namespace

std::vector<Padding::Column> Padding::columns(const ElementSpec& spec) const {
  std::vector<Column> columns;
  for (const Leaf& leaf : spec.leaves()) {
    columns.push_back({Shape(leaf.shape.size(), -1), std::vector<std::byte>(size_of(leaf.dtype))});
  }
  for (const Field& field : fields) {
    auto place = spec.find(field.name);
    if (!place)
      throw refuse_padding("there is no field '" + field.name + "' in " + spec.to_string());
    const Leaf& leaf = spec.leaves()[*place];
    columns[*place].value = stored(field.value, leaf);
    if (!field.shape) continue;
    auto wrong = [&] {
      return refuse_padding("'" + leaf.name + "' of shape " + to_string(leaf.shape) +
                            " cannot be filled up to " + to_string(*field.shape));
    };
    if (field.shape->size() != leaf.shape.size()) throw wrong();
    for (size_t axis = 0; axis < leaf.shape.size(); ++axis) {
      const int64_t asked = (*field.shape)[axis];
      if (asked < -1 || (asked >= 0 && leaf.shape[axis] > asked)) throw wrong();
    }
    columns[*place].shape = *field.shape;
  }
  return columns;
}

std::string Padding::text_of(const Value& value) {
  if (const auto* whole = std::get_if<int64_t>(&value)) return std::to_string(*whole);
  char digits[32];
  std::snprintf(digits, sizeof(digits), "%.17g", std::get<double>(value));
  return digits;
}

}  // namespace penstock
