#pragma once

#include <cstdint>

namespace penstock {

struct BatchOptions {
  bool drop_remainder = false;  // leave out a last batch that is not full
};

}  // namespace penstock
