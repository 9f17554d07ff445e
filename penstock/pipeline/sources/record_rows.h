#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/pipeline/sources/file_source.h"

namespace penstock {

// How a record of fixed length becomes an element: each leaf is a part of the record's bytes.
// Immutable: any thread.
struct RecordLayout {
  struct Part {
    uint64_t begin = 0;   // offset in the record; the part is as long as the leaf's row
    uint64_t number = 1;  // size of the values to byte-swap: 2, 4 or 8; 1: no swap
    unsigned below = 0;   // not 0: the part is a label of one byte, which must be less than this
  };
  SpecRef spec;             // all leaves have fixed shapes
  std::vector<Part> parts;  // one per leaf

  // Why a record is invalid; empty if it is valid.
  std::string wrong(std::span<const std::byte> record) const;
};

// Records of files as elements of this layout, indexed or as a stream. A record with an invalid
// label fails with kDataLoss. `operation`: the name in errors.
IndexedRef record_rows(std::shared_ptr<const RecordFiles> files, const char* operation,
                       std::string title, RecordLayout layout);
// The stream's length is known if the files' records are counted (StreamFiles::counts).
StreamedRef record_rows(std::shared_ptr<const StreamFiles> files, const char* operation,
                        std::string title, RecordLayout layout,
                        std::function<std::unique_ptr<Framing>()> framing);

}  // namespace penstock
