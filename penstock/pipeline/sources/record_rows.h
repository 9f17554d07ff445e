#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/pipeline/sources/file_source.h"

namespace penstock {

// How a record of one length is an element: each leaf is a stretch of it. Immutable: any thread.
struct RecordLayout {
  struct Part {
    uint64_t begin = 0;   // in the record; it is as long as the leaf's row
    uint64_t number = 1;  // bytes of what stands in the other byte order: 1 (nothing does), 2, 4, 8
    unsigned below = 0;   // not 0: the part is one byte, a label, and less than this
  };
  SpecRef spec;             // all leaves of it are fixed
  std::vector<Part> parts;  // one for each leaf

  // What is wrong with a record; mostly nothing.
  std::string wrong(std::span<const std::byte> record) const;
};

// Records of files as such elements, by their positions or in order. A record whose label cannot be
// is lost: kDataLoss. `operation`: that of errors.
IndexedRef record_rows(std::shared_ptr<const RecordFiles> files, const char* operation,
                       std::string title, RecordLayout layout);
// Of files whose records are counted (StreamFiles::counts) the stream's length is known.
StreamedRef record_rows(std::shared_ptr<const StreamFiles> files, const char* operation,
                        std::string title, RecordLayout layout,
                        std::function<std::unique_ptr<Framing>()> framing);

}  // namespace penstock
