#include "penstock/memory/tensor.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {
namespace {

constexpr size_t kAlignment = 64;

Error invalid(const char* operation, const std::string& text) {
  return Error(Code::kInvalidArgument, operation, text);
}

// Strides of an array in C order. REQUIRED: the shape was checked.
Shape dense_strides(const Shape& shape, size_t itemsize) {
  Shape strides(shape.size());
  auto step = static_cast<int64_t>(itemsize);
  for (size_t axis = shape.size(); axis-- > 0;) {
    strides[axis] = step;
    step *= std::max<int64_t>(shape[axis], 1);
  }
  return strides;
}

// The size of a dense array. The overflow check counts empty axes as one, so that strides fit too.
int64_t checked_bytes(const char* operation, const Shape& shape, DType dtype) {
  if (!is_valid(dtype)) throw invalid(operation, "unknown dtype");
  auto bytes = static_cast<int64_t>(size_of(dtype));
  for (int64_t length : shape) {
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(length, 1), &bytes)) {
      throw invalid(operation, "too large: shape " + to_string(shape));
    }
  }
  return element_count(shape) == 0 ? 0 : bytes;
}

// Copies elements of `shape` to dense memory; a dense innermost axis with one memcpy.
std::byte* copy_dense(std::byte* to, const std::byte* from, const Shape& shape,
                      const Shape& strides, size_t axis, size_t itemsize) {
  if (axis == shape.size()) {
    std::memcpy(to, from, itemsize);
    return to + itemsize;
  }
  if (axis + 1 == shape.size() && strides[axis] == static_cast<int64_t>(itemsize)) {
    size_t bytes = static_cast<size_t>(shape[axis]) * itemsize;
    std::memcpy(to, from, bytes);
    return to + bytes;
  }
  for (int64_t i = 0; i < shape[axis]; ++i, from += strides[axis]) {
    to = copy_dense(to, from, shape, strides, axis + 1, itemsize);
  }
  return to;
}

}  // namespace

std::string to_string(const Shape& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  if (shape.size() == 1) text += ",";
  return text + ")";
}

int64_t element_count(const Shape& shape) {
  int64_t count = 1;
  bool overflow = false;
  bool empty = false;
  for (int64_t length : shape) {
    if (length < 0) throw invalid("shape", "negative length in " + to_string(shape));
    empty |= length == 0;
    overflow |= __builtin_mul_overflow(count, length, &count);
  }
  if (empty) return 0;
  if (overflow) throw invalid("shape", "too many elements: " + to_string(shape));
  return count;
}

Tensor Tensor::make(DType dtype, Shape shape) {
  auto bytes = static_cast<size_t>(checked_bytes("Tensor::make", shape, dtype));
  auto* memory = static_cast<std::byte*>(
      ::operator new (std::max(bytes, kAlignment), std::align_val_t{kAlignment}, std::nothrow));
  if (memory == nullptr) {
    throw Error(Code::kOutOfMemory, "Tensor::make", "no memory for " + to_string(shape));
  }
  std::shared_ptr<void> owner(memory,
                              [](void* p) { ::operator delete (p, std::align_val_t{kAlignment}); });
  return view(dtype, std::move(shape), memory, std::move(owner));
}

Tensor Tensor::view(DType dtype, Shape shape, void* data, std::shared_ptr<void> owner,
                    Shape strides, bool read_only) {
  int64_t bytes = checked_bytes("Tensor::view", shape, dtype);
  if (bytes > 0 && data == nullptr) throw invalid("Tensor::view", "no data");
  if (strides.empty()) strides = dense_strides(shape, size_of(dtype));
  if (strides.size() != shape.size()) {
    throw invalid("Tensor::view",
                  "shape " + to_string(shape) + " but strides " + to_string(strides));
  }
  Tensor tensor;
  tensor.defined_ = true;
  tensor.dtype_ = dtype;
  tensor.shape_ = std::move(shape);
  tensor.strides_ = std::move(strides);
  tensor.data_ = static_cast<std::byte*>(data);
  tensor.owner_ = std::move(owner);
  tensor.read_only_ = read_only;
  return tensor;
}

Tensor Tensor::view(DType dtype, Shape shape, const Lease& lease, size_t offset, Shape strides) {
  if (!lease) throw invalid("Tensor::view", "an empty lease");
  if (offset > lease.bytes()) {
    throw invalid("Tensor::view", "offset " + std::to_string(offset) + " in a block of " +
                                      std::to_string(lease.bytes()) + " bytes");
  }
  Tensor tensor =
      view(dtype, std::move(shape), lease.data() + offset, lease.owner(), std::move(strides));
  // The lowest and the highest byte that any element touches, from the block's start.
  __int128 low = static_cast<__int128>(offset);
  __int128 high = low;
  for (size_t axis = 0; axis < tensor.ndim(); ++axis) {
    if (tensor.shape_[axis] == 0) continue;
    __int128 reach = static_cast<__int128>(tensor.shape_[axis] - 1) * tensor.strides_[axis];
    (reach < 0 ? low : high) += reach;
  }
  if (tensor.size() > 0) high += size_of(dtype);
  if (low < 0 || high > static_cast<__int128>(lease.bytes())) {
    throw invalid("Tensor::view", "shape " + to_string(tensor.shape_) + " of " +
                                      std::string(name_of(dtype)) + " with strides " +
                                      to_string(tensor.strides_) + " at " + std::to_string(offset) +
                                      " does not fit in " + std::to_string(lease.bytes()) +
                                      " bytes");
  }
  return tensor;
}

int64_t Tensor::size() const { return defined_ ? element_count(shape_) : 0; }

size_t Tensor::nbytes() const { return static_cast<size_t>(size()) * size_of(dtype_); }

bool Tensor::is_contiguous() const {
  if (size() == 0) return true;
  auto step = static_cast<int64_t>(size_of(dtype_));
  for (size_t axis = ndim(); axis-- > 0;) {
    if (shape_[axis] != 1 && strides_[axis] != step) return false;
    step *= shape_[axis];
  }
  return true;
}

Tensor Tensor::contiguous() const { return is_contiguous() ? *this : copy(); }

Tensor Tensor::copy() const {
  if (!defined_) return {};
  Tensor made = make(dtype_, shape_);
  if (is_contiguous()) {
    if (nbytes() > 0) std::memcpy(made.data_, data_, nbytes());
  } else {
    copy_dense(made.data_, data_, shape_, strides_, 0, size_of(dtype_));
  }
  return made;
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  if (ndim() == 0 || begin < 0 || begin > end || end > shape_[0]) {
    throw invalid("Tensor::rows", "[" + std::to_string(begin) + ", " + std::to_string(end) +
                                      ") of shape " + to_string(shape_));
  }
  Tensor part = *this;
  part.shape_[0] = end - begin;
  if (begin < end) part.data_ += begin * strides_[0];
  return part;
}

Tensor Tensor::row(int64_t index) const {
  if (ndim() == 0 || index < 0 || index >= shape_[0]) {
    throw invalid("Tensor::row", std::to_string(index) + " of shape " + to_string(shape_));
  }
  Tensor part = *this;
  part.data_ += index * strides_[0];
  part.shape_.erase(part.shape_.begin());
  part.strides_.erase(part.strides_.begin());
  return part;
}

std::span<const std::byte> Tensor::bytes() const {
  check_span(dtype_, true);
  return {data_, nbytes()};
}

void Tensor::check_span(DType dtype, bool is_const) const {
  if (!defined_) throw invalid("Tensor::as_span", "an undefined tensor");
  if (dtype != dtype_) {
    throw invalid("Tensor::as_span", "elements are " + std::string(name_of(dtype_)) + ", not " +
                                         std::string(name_of(dtype)));
  }
  if (!is_contiguous()) throw invalid("Tensor::as_span", "not contiguous; call contiguous()");
  if (read_only_ && !is_const) throw invalid("Tensor::as_span", "the tensor is read-only");
}

bool bit_equal(const Tensor& a, const Tensor& b) {
  if (a.defined_ != b.defined_ || a.dtype_ != b.dtype_ || a.shape_ != b.shape_) return false;
  if (a.nbytes() == 0) return true;
  Tensor left = a.contiguous();
  Tensor right = b.contiguous();
  return std::memcmp(left.data_, right.data_, left.nbytes()) == 0;
}

}  // namespace penstock
