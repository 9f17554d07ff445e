#include "penstock/image/resize_filter.h"

#include <algorithm>
#include <cmath>

namespace penstock::image {
namespace {

constexpr std::string_view kNames[] = {"nearest", "box", "bilinear", "bicubic", "lanczos"};

double box(double x) { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; }

double bilinear(double x) {
  x = std::fabs(x);
  return x < 1.0 ? 1.0 - x : 0.0;
}

double bicubic(double x) {
  constexpr double kA = -0.5;
  x = std::fabs(x);
  if (x < 1.0) return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * kA;
  return 0.0;
}

double sinc(double x) {
  if (x == 0.0) return 1.0;
  x *= M_PI;
  return std::sin(x) / x;
}

double lanczos(double x) { return x >= -3.0 && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0; }

struct Kernel {
  double (*weight)(double);
  double support;
};

Kernel kernel_of(Filter filter) {
  switch (filter) {
    case Filter::kBox:
      return {box, 0.5};
    case Filter::kBicubic:
      return {bicubic, 2.0};
    case Filter::kLanczos:
      return {lanczos, 3.0};
    case Filter::kNearest:
    case Filter::kBilinear:
      break;
  }
  return {bilinear, 1.0};
}

}  // namespace

std::string_view name_of(Filter filter) { return kNames[static_cast<size_t>(filter)]; }

std::optional<Filter> filter_named(std::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == name) return static_cast<Filter>(i);
  }
  return std::nullopt;
}

bool AxisWeights::reset(const AxisScale& scale) {
  if (scale == scale_) return false;
  scale_ = {};  // and stays so if there is no memory
  places_.resize(static_cast<size_t>(scale.count));
  if (scale.filter == Filter::kNearest) {
    find_nearest(scale);
  } else {
    find_weights(scale);
  }
  first_input_ = scale.in;
  end_input_ = 0;
  for (const Place& place : places_) {
    first_input_ = std::min(first_input_, place.begin);
    end_input_ = std::max(end_input_, place.begin + place.taps);
  }
  scale_ = scale;
  return true;
}

void AxisWeights::find_nearest(const AxisScale& axis) {
  const double step = (axis.end - axis.begin) / axis.out;
  // The sum is rounded at every place, as Pillow's is.
  double at = axis.begin + step * 0.5;
  for (int i = 0; i < axis.first; ++i) at += step;
  for (Place& place : places_) {
    place = {std::min(static_cast<int>(at), axis.in - 1), 1};
    at += step;
  }
  stride_ = 1;
  weights_.assign(places_.size(), 1 << kBits);
}

void AxisWeights::find_weights(const AxisScale& axis) {
  const Kernel kernel = kernel_of(axis.filter);
  const double scale = (axis.end - axis.begin) / axis.out;
  const double filter_scale = axis.antialias ? std::max(scale, 1.0) : 1.0;
  const double support = kernel.support * filter_scale;
  const double unit = 1.0 / filter_scale;
  stride_ = static_cast<int>(std::ceil(support)) * 2 + 1;
  const auto stride = static_cast<size_t>(stride_);
  weights_.resize(places_.size() * stride);
  exact_.resize(stride);
  for (size_t i = 0; i < places_.size(); ++i) {
    const double center = axis.begin + (axis.first + static_cast<int>(i) + 0.5) * scale;
    const int begin = std::max(static_cast<int>(center - support + 0.5), 0);
    const int taps = std::min(static_cast<int>(center + support + 0.5), axis.in) - begin;
    double sum = 0.0;
    for (int k = 0; k < taps; ++k) {
      exact_[static_cast<size_t>(k)] = kernel.weight((k + begin - center + 0.5) * unit);
      sum += exact_[static_cast<size_t>(k)];
    }
    int32_t* weights = weights_.data() + i * stride;
    for (int k = 0; k < taps; ++k) {
      double weight = exact_[static_cast<size_t>(k)];
      if (sum != 0.0) weight /= sum;
      weights[k] = static_cast<int32_t>((weight < 0 ? -0.5 : 0.5) + weight * (1 << kBits));
    }
    places_[i] = {begin, taps};
  }
}

}  // namespace penstock::image
