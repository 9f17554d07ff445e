#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/memory/tensor.h"

namespace penstock {

// Named tensors in the order in which they were set: a sample, or a batch of samples. Copies share
// the data (see Tensor). A value: not synchronised.
class Example {
 public:
  using Item = std::pair<std::string, Tensor>;

  Example() = default;
  Example(std::initializer_list<Item> items);  // later ones replace earlier ones of the same name

  // Adds a tensor, or replaces the one of this name in its place.
  void set(std::string name, Tensor tensor);

  // Error kNotFound, which lists the existing names.
  const Tensor& at(std::string_view name) const;
  const Tensor* find(std::string_view name) const;  // nullptr: there is none

  bool empty() const { return items_.empty(); }
  size_t size() const { return items_.size(); }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }
  const Item& operator[](size_t place) const { return items_[place]; }  // unchecked

 private:
  std::vector<Item> items_;
};

}  // namespace penstock
