#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/element/stored_value.h"
#include "penstock/pipeline/stages/op.h"
#include "penstock/pipeline/transformations/operations.h"

namespace penstock {
namespace {

// The numbers of the channels, repeated so that vectors of any width divide their count.
struct Tile {
  Tile(const std::vector<float>& m, const std::vector<float>& s) {
    const size_t times = m.size() > 256 ? 1 : 16;
    for (size_t i = 0; i < times; ++i) {
      mean.insert(mean.end(), m.begin(), m.end());
      std.insert(std.end(), s.begin(), s.end());
    }
  }
  std::vector<float> mean, std;
};

using Normalize = void (*)(const std::byte* in, std::byte* out, uint64_t values, const Tile& tile);

#define PENSTOCK_NORMALIZE_PART __attribute__((always_inline)) inline

template <class From>
PENSTOCK_NORMALIZE_PART void normalize_some(const std::byte* in, std::byte* out, uint64_t values,
                                            const float* mean, const float* std) {
  for (uint64_t i = 0; i < values; ++i) {
    const auto value = static_cast<float>(From::load(in + i * From::kBytes));
    Stored<float>::store(out + i * sizeof(float), (value - mean[i]) / std[i]);
  }
}

template <class From>
PENSTOCK_NORMALIZE_PART void normalize_channels(const std::byte* in, std::byte* out,
                                                uint64_t values, const Tile& tile) {
  const uint64_t step = tile.mean.size();
  for (uint64_t i = 0; i < values; i += step) {
    normalize_some<From>(in + i * From::kBytes, out + i * sizeof(float), std::min(step, values - i),
                         tile.mean.data(), tile.std.data());
  }
}

template <class From>
PENSTOCK_NORMALIZE_PART void normalize_all(const std::byte* in, std::byte* out, uint64_t values,
                                           const Tile& tile) {
  const float mean = tile.mean[0], std = tile.std[0];
  for (uint64_t i = 0; i < values; ++i) {
    const auto value = static_cast<float>(From::load(in + i * From::kBytes));
    Stored<float>::store(out + i * sizeof(float), (value - mean) / std);
  }
}

// The functions that are compiled once per instruction set. Difference and quotient are
// bit-identical in all of them.
#define PENSTOCK_NORMALIZE_SET(name, attribute)                                                  \
  template <class From>                                                                          \
  attribute void channels_##name(const std::byte* in, std::byte* out, uint64_t n,                \
                                 const Tile& tile) {                                             \
    normalize_channels<From>(in, out, n, tile);                                                  \
  }                                                                                              \
  template <class From>                                                                          \
  attribute void all_##name(const std::byte* in, std::byte* out, uint64_t n, const Tile& tile) { \
    normalize_all<From>(in, out, n, tile);                                                       \
  }                                                                                              \
  Normalize kernel_##name(DType dtype, bool channels) {                                          \
    return with_stored(dtype, [&](auto source) -> Normalize {                                    \
      using From = decltype(source);                                                             \
      return channels ? channels_##name<From> : all_##name<From>;                                \
    });                                                                                          \
  }

PENSTOCK_NORMALIZE_SET(plain, )
#if defined(__x86_64__)
PENSTOCK_NORMALIZE_SET(avx2, __attribute__((target("avx2"))))
#if defined(__clang__)
#define PENSTOCK_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl"), min_vector_width(512)))
#else
#define PENSTOCK_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,prefer-vector-width=512")))
#endif
PENSTOCK_NORMALIZE_SET(avx512, PENSTOCK_AVX512)

using Kernel = Normalize (*)(DType, bool);
constexpr Kernel kKernels[] = {kernel_plain, kernel_avx2, kernel_avx512};
size_t usable() {
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) return 3;
  return __builtin_cpu_supports("avx2") ? 2 : 1;
}
#else
using Kernel = Normalize (*)(DType, bool);
constexpr Kernel kKernels[] = {kernel_plain};
size_t usable() { return 1; }
#endif

Normalize kernel(DType dtype, bool channels) { return kKernels[usable() - 1](dtype, channels); }

class NormalizeRun : public FieldOp::Run {
 public:
  NormalizeRun(DType dtype, const std::vector<float>& mean, const std::vector<float>& std,
               Scratch& scratch)
      : normalize_(kernel(dtype, mean.size() > 1)),
        channels_(mean.size()),
        tile_(mean, std),
        scratch_(scratch) {}

  void run(const Chunk& in, size_t from, Chunk& out, size_t to, uint32_t row,
           uint32_t end) override {
    const FetchAhead fetch(in, from, row, end);
    each_alive(in.alive() & out.alive(), row, end, [&](uint32_t i) {
      fetch.turn_of(i);
      std::span<const int64_t> shape = in.shape(from, i);
      if (channels_ > 1 && shape.back() != static_cast<int64_t>(channels_)) {
        return out.fail(i, {"", 0, std::make_exception_ptr(wrong_channels(in, from, shape))});
      }
      const uint64_t values = values_of(shape);
      std::byte* place = place_row(out, to, i, values * sizeof(float), shape, scratch_);
      normalize_(in.at(from, i), place, values, tile_);
    });
  }

 private:
  Error wrong_channels(const Chunk& in, size_t leaf, std::span<const int64_t> shape) const {
    return {Code::kInvalidArgument, "normalize",
            "'" + in.spec()->leaves()[leaf].name + "' has " + std::to_string(shape.back()) +
                " channels, and mean " + std::to_string(channels_)};
  }

  Normalize normalize_;
  size_t channels_;
  Tile tile_;
  Scratch& scratch_;
};

bool is_array(const Leaf& leaf) {
  return leaf.kind == LeafKind::kDense || leaf.kind == LeafKind::kRagged;
}

std::string listed(const std::vector<float>& numbers) {
  std::string text = numbers.size() > 1 ? "(" : "";
  for (size_t i = 0; i < numbers.size(); ++i) {
    char digits[32];
    std::snprintf(digits, sizeof(digits), "%.9g", static_cast<double>(numbers[i]));
    text += (i > 0 ? ", " : "") + std::string(digits);
  }
  return text + (numbers.size() > 1 ? ")" : "");
}

class NormalizeOp : public FieldOp {
 public:
  NormalizeOp(std::vector<float> mean, std::vector<float> std, std::vector<std::string> fields)
      : FieldOp("normalize", std::move(fields)), mean_(std::move(mean)), std_(std::move(std)) {
    if (mean_.empty() || mean_.size() != std_.size()) {
      throw Error(Code::kInvalidArgument, "normalize",
                  std::to_string(mean_.size()) + " numbers of mean and " +
                      std::to_string(std_.size()) + " of std; give one of each, or one a channel");
    }
    for (float one : std_) {
      if (one == 0 || !std::isfinite(one)) {
        throw Error(Code::kInvalidArgument, "normalize", "std is " + listed({one}));
      }
    }
  }

  std::string title() const override {
    std::string text = "normalize(" + listed(mean_) + ", " + listed(std_);
    for (const std::string& field : fields()) text += ", " + field;
    return text + ")";
  }

 private:
  bool applies(const Leaf& leaf) const override {
    return is_array(leaf) && (leaf.dtype == DType::kUint8 || leaf.dtype == DType::kFloat32 ||
                              leaf.dtype == DType::kFloat64);
  }
  Leaf result_of(const Leaf& in) const override {
    auto refuse = [&](const std::string& why) {
      return Error(Code::kInvalidArgument, name(), "'" + in.name + "' " + why);
    };
    if (!is_array(in)) throw refuse("is a string");
    if (is_complex(in.dtype)) throw refuse("is " + std::string(name_of(in.dtype)));
    if (mean_.size() > 1) {
      const int64_t channels = in.shape.empty() ? 0 : in.shape.back();
      if (channels >= 0 && channels != static_cast<int64_t>(mean_.size())) {
        throw refuse("has " + std::to_string(channels) + " channels, and mean " +
                     std::to_string(mean_.size()));
      }
    }
    Leaf out = in;
    out.dtype = DType::kFloat32;
    return out;
  }
  std::unique_ptr<Run> bind_leaf(const Leaf& in, const Leaf&, Context& context) const override {
    return std::make_unique<NormalizeRun>(in.dtype, mean_, std_, context.scratch);
  }

  std::vector<float> mean_, std_;
};

}  // namespace

OpRef normalize(std::vector<float> mean, std::vector<float> std, std::vector<std::string> fields) {
  return std::make_shared<NormalizeOp>(std::move(mean), std::move(std), std::move(fields));
}

}  // namespace penstock
