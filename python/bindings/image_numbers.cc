#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gil.h"
#include "module.h"
#include "numpy_api.h"
#include "penstock/base/error.h"
#include "penstock/image/exif.h"
#include "penstock/image/resize_filter.h"
#include "penstock/pipeline/transformations/image_operations.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

// An axis of an image: its places; the begin and the end of the part that is resized.
using Axis = std::tuple<int, double, double>;

nb::object new_array(std::initializer_list<size_t> shape, int type) {
  std::array<npy_intp, 3> sizes{};
  std::copy(shape.begin(), shape.end(), sizes.begin());
  nb::object made = nb::steal(PyArray_ZEROS(static_cast<int>(shape.size()), sizes.data(), type, 0));
  if (!made.is_valid()) throw nb::python_error();
  return made;
}

template <class T>
T* data_of(const nb::object& array) {
  return static_cast<T*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(array.ptr())));
}

nb::object drawn_parameters(std::shared_ptr<Op> operation, std::array<uint64_t, 3> address,
                            uint32_t number, const std::vector<std::array<int, 2>>& sizes) {
  std::vector<image::Size> images;
  for (const auto& [height, width] : sizes) images.push_back({height, width});
  const OpRef op = std::move(operation);
  nb::object made = new_array({sizes.size(), image::parameter_count(op)}, NPY_DOUBLE);
  auto* const to = data_of<double>(made);
  WithoutGil unlocked;
  image::draw_parameters(op, {address[0], address[1], address[2], number}, images, to);
  return made;
}

// The first input place of each output place {axes, out}, and the weights {axes, out, taps}.
nb::object resize_weights(const std::vector<Axis>& axes, int out, const std::string& filter,
                          bool antialias) {
  const auto known = image::filter_named(filter);
  if (!known) throw Error(Code::kInvalidArgument, "image.resize", "filter is '" + filter + "'");
  std::vector<image::AxisWeights> each(axes.size());
  size_t taps = 1;
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto& [in, begin, end] = axes[i];
    if (!(in > 0 && begin >= 0 && begin < end && end <= in && out > 0)) {
      throw Error(Code::kInvalidArgument, "image.resize", "no part of an axis");
    }
    each[i].reset({in, begin, end, out, 0, out, *known, antialias});
    for (int place = 0; place < out; ++place) {
      taps = std::max(taps, static_cast<size_t>(each[i].taps(place)));
    }
  }
  const auto places = static_cast<size_t>(out);
  nb::object begins = new_array({axes.size(), places}, NPY_INT32);
  nb::object weights = new_array({axes.size(), places, taps}, NPY_INT32);
  auto* to_begin = data_of<int32_t>(begins);
  auto* to_weight = data_of<int32_t>(weights);
  for (const image::AxisWeights& axis : each) {
    for (int place = 0; place < out; ++place, to_weight += taps) {
      *to_begin++ = axis.begin(place);
      std::copy_n(axis.weights(place), axis.taps(place), to_weight);
    }
  }
  return nb::make_tuple(begins, weights);
}

}  // namespace

void bind_image_numbers(nb::module_& m) {
  m.def("image_drawn_parameters", &drawn_parameters);
  m.def("image_resize_weights", &resize_weights);
  m.def("jpeg_orientation", [](nb::bytes jpeg) {
    return image::jpeg_orientation({static_cast<const std::byte*>(jpeg.data()), jpeg.size()});
  });
}

}  // namespace penstock::python
