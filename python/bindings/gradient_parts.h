#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "buffer.h"
#include "penstock/train/gradient_parts.h"

namespace penstock::python {

// Gradients of blocks from a list of (block, values of float32, rows of int64 or None), all
// contiguous. REQUIRED: construction and destruction with the GIL held. parts() may be read without
// it.
class PartsOfList {
 public:
  explicit PartsOfList(const nanobind::list& given) {
    buffers_.reserve(2 * nanobind::len(given));
    for (nanobind::handle part : given) {
      buffers_.emplace_back(part[1], "a gradient");
      train::GradientPart one{nanobind::cast<std::string>(part[0]), last_as<float>()};
      if (nanobind::object rows = part[2]; !rows.is_none()) {
        buffers_.emplace_back(rows, "rows");
        one.of_rows = true;
        one.rows = last_as<int64_t>();
      }
      parts_.push_back(std::move(one));
    }
  }
  std::span<const train::GradientPart> parts() const { return parts_; }

 private:
  template <typename T>
  std::span<const T> last_as() const {
    const auto bytes = buffers_.back().bytes();
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

  std::vector<Buffer> buffers_;
  std::vector<train::GradientPart> parts_;
};

}  // namespace penstock::python
