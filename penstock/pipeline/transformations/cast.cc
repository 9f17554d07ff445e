#include <limits>
#include <type_traits>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/element/stored_value.h"
#include "penstock/pipeline/stages/op.h"
#include "penstock/pipeline/transformations/operations.h"

namespace penstock {
namespace {

template <class To, class From>
To converted(From value) {
  if constexpr (std::is_same_v<To, bool>) {
    return value != From(0);
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    constexpr auto kMin = static_cast<From>(std::numeric_limits<To>::min());
    // One more than the greatest To: a power of two, which every From represents exactly.
    constexpr From kBeyond =
        static_cast<From>(uint64_t{1} << (std::numeric_limits<To>::digits - 1)) * 2;
    if (value >= kBeyond) return std::numeric_limits<To>::max();
    if (value >= kMin) return static_cast<To>(value);
    return value < kMin ? std::numeric_limits<To>::min() : To(0);
  } else {
    return static_cast<To>(value);
  }
}

using Convert = void (*)(const std::byte* in, std::byte* out, uint64_t values);

template <class From, class To>
void convert(const std::byte* in, std::byte* out, uint64_t values) {
  for (uint64_t i = 0; i < values; ++i) {
    To::store(out + i * To::kBytes,
              converted<typename To::Value>(From::load(in + i * From::kBytes)));
  }
}

Convert conversion(DType from, DType to) {
  return with_stored(from, [&](auto source) -> Convert {
    using From = decltype(source);
    return with_stored(to, [](auto target) -> Convert { return convert<From, decltype(target)>; });
  });
}

class CastRun : public FieldOp::Run {
 public:
  CastRun(DType from, DType to, Scratch& scratch)
      : convert_(conversion(from, to)), itemsize_(size_of(to)), scratch_(scratch) {}

  void run(const Chunk& in, size_t from, Chunk& out, size_t to, uint32_t row,
           uint32_t end) override {
    const FetchAhead fetch(in, from, row, end);
    each_alive(in.alive() & out.alive(), row, end, [&](uint32_t i) {
      fetch.turn_of(i);
      std::span<const int64_t> shape = in.shape(from, i);
      const uint64_t values = values_of(shape);
      std::byte* place = place_row(out, to, i, values * itemsize_, shape, scratch_);
      convert_(in.at(from, i), place, values);
    });
  }

 private:
  Convert convert_;
  size_t itemsize_;
  Scratch& scratch_;
};

bool holds_numbers(const Leaf& leaf) {
  return leaf.kind == LeafKind::kDense || leaf.kind == LeafKind::kRagged;
}

class CastOp : public FieldOp {
 public:
  CastOp(DType dtype, std::vector<std::string> fields)
      : FieldOp("cast", std::move(fields)), dtype_(dtype) {
    if (!is_valid(dtype) || is_complex(dtype)) {
      throw Error(Code::kInvalidArgument, "cast",
                  "nothing is cast to " + std::string(name_of(dtype)));
    }
  }

  std::string title() const override {
    std::string text = "cast(" + std::string(name_of(dtype_));
    for (const std::string& field : fields()) text += ", " + field;
    return text + ")";
  }

 private:
  bool applies(const Leaf& leaf) const override {
    return holds_numbers(leaf) && !is_complex(leaf.dtype);
  }
  Leaf result_of(const Leaf& in) const override {
    if (!holds_numbers(in) || is_complex(in.dtype)) {
      throw Error(Code::kInvalidArgument, name(),
                  "'" + in.name + "' is " +
                      (holds_numbers(in) ? std::string(name_of(in.dtype)) : "a string") +
                      " and cannot be cast to " + std::string(name_of(dtype_)));
    }
    Leaf out = in;
    out.dtype = dtype_;
    return out;
  }
  std::unique_ptr<Run> bind_leaf(const Leaf& in, const Leaf& out, Context& context) const override {
    return std::make_unique<CastRun>(in.dtype, out.dtype, context.scratch);
  }

  DType dtype_;
};

}  // namespace

OpRef cast(DType dtype, std::vector<std::string> fields) {
  return std::make_shared<CastOp>(dtype, std::move(fields));
}

}  // namespace penstock
