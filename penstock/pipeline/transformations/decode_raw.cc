#include <algorithm>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/memory/copy.h"
#include "penstock/pipeline/stages/op.h"
#include "penstock/pipeline/transformations/operations.h"

namespace penstock {
namespace {

Error wrong_length(const Leaf& in, const Leaf& out, uint64_t bytes) {
  return {Code::kInvalidArgument, "decode_raw",
          "'" + in.name + "' has " + std::to_string(bytes) + " bytes; " +
              std::string(name_of(out.dtype)) + " " + to_string(out.shape) + " has " +
              std::to_string(static_cast<uint64_t>(out.fixed_values()) * size_of(out.dtype))};
}

class DecodeRun : public FieldOp::Run {
 public:
  DecodeRun(DType dtype, bool reversed)
      : truths_(dtype == DType::kBool), number_(reversed ? number_bytes(dtype) : 1) {}

  // Copies, since the bytes of a record may be misaligned for the dtype.
  void run(const Chunk& in, size_t from, Chunk& out, size_t to, uint32_t row,
           uint32_t end) override {
    std::byte* first = out.dense(to);
    const uint64_t bytes = out.row_bytes(to), stride = out.stride(to);
    each_alive(in.alive() & out.alive(), row, end, [&](uint32_t i) {
      const auto own = static_cast<uint64_t>(in.shape(from, i)[0]);
      if (own != bytes) {
        Error error = wrong_length(in.spec()->leaves()[from], out.spec()->leaves()[to], own);
        return out.fail(i, {"", 0, std::make_exception_ptr(error)});
      }
      put(first + i * stride, in.at(from, i), bytes);
    });
  }

 private:
  void put(std::byte* to, const std::byte* from, uint64_t bytes) const {
    if (!truths_) return copy_byteswapped(to, from, bytes, number_);
    // A bool with another value than 0 and 1 is undefined behavior for its readers.
    std::transform(from, from + bytes, to, [](std::byte b) { return std::byte{b != std::byte{}}; });
  }

  bool truths_;
  size_t number_;  // size of the values to byte-swap; 1: no swap
};

class DecodeRawOp : public FieldOp {
 public:
  DecodeRawOp(std::string field, DType dtype, Shape shape, bool reversed)
      : FieldOp("decode_raw", {std::move(field)}),
        dtype_(dtype),
        shape_(std::move(shape)),
        reversed_(reversed) {
    if (!is_valid(dtype)) throw Error(Code::kInvalidArgument, name(), "there is no such dtype");
    const int64_t values = element_count(shape_);
    if (__builtin_mul_overflow(static_cast<uint64_t>(values), size_of(dtype), &bytes_)) {
      throw Error(Code::kInvalidArgument, name(), to_string(shape_) + " is too large");
    }
  }

  std::string title() const override {
    return "decode_raw(" + fields()[0] + ", " + std::string(name_of(dtype_)) + ", " +
           to_string(shape_) + (reversed_ ? ", reversed)" : ")");
  }

 private:
  bool applies(const Leaf&) const override { return false; }
  Leaf result_of(const Leaf& in) const override {
    Leaf out{in.name, LeafKind::kDense, dtype_, shape_};
    if (in.dtype != DType::kUint8 || in.shape.size() != 1 || in.kind == LeafKind::kText) {
      throw Error(Code::kInvalidArgument, name(), "'" + in.name + "' is no string of bytes");
    }
    if (in.fixed() && static_cast<uint64_t>(in.shape[0]) != bytes_) {
      throw wrong_length(in, out, static_cast<uint64_t>(in.shape[0]));
    }
    return out;
  }
  std::unique_ptr<Run> bind_leaf(const Leaf&, const Leaf&, Context&) const override {
    return std::make_unique<DecodeRun>(dtype_, reversed_);
  }

  DType dtype_;
  Shape shape_;
  bool reversed_;
  uint64_t bytes_;
};

}  // namespace

OpRef decode_raw(std::string field, DType dtype, Shape shape, bool reversed) {
  return std::make_shared<DecodeRawOp>(std::move(field), dtype, std::move(shape), reversed);
}

}  // namespace penstock
