#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/memory/dtype.h"
#include "penstock/memory/lease.h"

namespace penstock {

using Shape = std::vector<int64_t>;  // also of strides, in bytes

// "(2, 3, 4)", for messages.
std::string to_string(const Shape& shape);

// Elements of a shape. Error kInvalidArgument if a length is negative or the product overflows.
int64_t element_count(const Shape& shape);

// A view of an n-dimensional array in main memory, with shared ownership of that memory. Copying a
// tensor copies the view, not the data.
//
// Threads: const members from any thread; writers of the same data must synchronise.
class Tensor {
 public:
  Tensor() = default;  // no data: defined() is false

  // New memory, contiguous in C order, 64-byte aligned, contents undefined.
  // Errors: kInvalidArgument (shape), kOutOfMemory.
  static Tensor make(DType dtype, Shape shape);

  // A view of existing memory, which `owner` keeps alive (empty: the caller does). `strides` in
  // bytes, may be negative or zero; empty: C order. Error kInvalidArgument: an invalid shape.
  static Tensor view(DType dtype, Shape shape, void* data, std::shared_ptr<void> owner,
                     Shape strides = {}, bool read_only = false);

  // A view at `offset` bytes into a leased block. Error kInvalidArgument if an element lies
  // outside.
  static Tensor view(DType dtype, Shape shape, const Lease& lease, size_t offset = 0,
                     Shape strides = {});

  bool defined() const { return defined_; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  const Shape& strides() const { return strides_; }  // bytes
  size_t ndim() const { return shape_.size(); }
  int64_t dim(size_t axis) const { return shape_.at(axis); }
  int64_t size() const;                      // elements
  size_t nbytes() const;                     // size() * size_of(dtype())
  std::byte* data() const { return data_; }  // of the first element; do not write if read_only()
  bool read_only() const { return read_only_; }
  const std::shared_ptr<void>& owner() const { return owner_; }

  bool is_contiguous() const;  // in C order, without gaps
  Tensor contiguous() const;   // this tensor if it is contiguous, otherwise a copy
  Tensor copy() const;         // contiguous, its own memory, writable

  // A view of rows [begin, end) of axis 0. Error kInvalidArgument if out of range.
  Tensor rows(int64_t begin, int64_t end) const;
  // Row `index`, without axis 0.
  Tensor row(int64_t index) const;

  // The elements in order. Error kInvalidArgument if T does not match the dtype, the tensor is not
  // contiguous, or it is read-only and T is not const.
  template <typename T>
  std::span<T> as_span() const {
    check_span(dtype_of<T>(), std::is_const_v<T>);
    return {reinterpret_cast<T*>(data_), static_cast<size_t>(size())};
  }
  // The bytes in order, for any dtype. Same errors.
  std::span<const std::byte> bytes() const;

  // Same dtype, shape and bits. NaN equals a NaN of the same bits, and 0.0 is not -0.0.
  friend bool bit_equal(const Tensor& a, const Tensor& b);

 private:
  void check_span(DType dtype, bool is_const) const;

  DType dtype_ = DType::kUint8;
  bool defined_ = false;
  bool read_only_ = false;
  Shape shape_;
  Shape strides_;
  std::byte* data_ = nullptr;
  std::shared_ptr<void> owner_;
};

bool bit_equal(const Tensor& a, const Tensor& b);

}  // namespace penstock
