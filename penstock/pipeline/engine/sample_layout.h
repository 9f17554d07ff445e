#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "penstock/memory/batch_layout.h"
#include "penstock/memory/example.h"

namespace penstock {

// The structure that all samples of a batch share: names, dtypes and shapes. As bytes it is what
// travels as a batch's layout (Slot::rows); equal structures have equal bytes:
//
//   { u32 length of the name, name, u8 dtype, u8 ndim, i64 shape[ndim] } for each tensor, in order
class SampleLayout {
 public:
  SampleLayout() = default;
  // Error kInvalidArgument: no tensors, one without data, or more than 255 axes.
  explicit SampleLayout(const Example& sample);
  // Error kInternal: the bytes are no layout.
  explicit SampleLayout(std::span<const std::byte> bytes);

  bool matches(const Example& sample) const;
  std::span<const std::byte> bytes() const { return bytes_; }
  size_t size() const { return names_.size(); }
  const std::string& name(size_t place) const { return names_[place]; }
  const std::vector<Field>& fields() const { return fields_; }
  // "{image: float32 (28, 28), label: int64 ()}"
  std::string to_string() const;

 private:
  std::vector<std::string> names_;
  std::vector<Field> fields_;
  std::vector<std::byte> bytes_;
};

}  // namespace penstock
