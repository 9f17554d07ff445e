#pragma once

#include <cstdint>
#include <string>

#include "penstock/base/error.h"
#include "penstock/io/arrow.h"

namespace penstock {

// Far above any memory, far below overflow.
inline constexpr int64_t kMaxArrowItems = int64_t{1} << 48;

// Checks an array against its schema as import does, and fills in nulls and sizes of buffers.
// `name`: of the column in errors. Error kDataLoss.
void check_arrow(const ArrowField& field, ArrowColumn& column, const std::string& name);

// Error kDataLoss: an array contradicts its schema or itself. `why` follows its name.
inline Error arrow_contradiction(const std::string& name, const std::string& why) {
  return {Code::kDataLoss, "arrow", (name.empty() ? "the array " : "'" + name + "' ") + why};
}

}  // namespace penstock
