#pragma once

#include <cstddef>
#include <string_view>

#include "penstock/memory/dtype.h"

namespace penstock {

// Reads a number as it is written in text, spaces around it, into `to`. An integer may have a sign;
// a float what std::from_chars takes (1.5e3, nan, inf), one that is too small is 0; a bool is 1, 0,
// true or false, in lower case, upper case or as a name. False: it is none, or it does not fit.
bool read_number(std::string_view text, DType dtype, std::byte* to);

// Whether read_number() knows the dtype.
bool is_csv_number(DType dtype);

}  // namespace penstock
