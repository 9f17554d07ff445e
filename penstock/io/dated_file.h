#pragma once

#include <cstdint>

#include "penstock/io/file.h"

namespace penstock {

// A file that knows when its bytes were last changed; not every file does.
class DatedFile : public File {
 public:
  // In nanoseconds since 1970, as far as the clock of where it lies tells. Error kSystem.
  virtual int64_t modified_ns() = 0;
};

}  // namespace penstock
