#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "penstock/pipeline/plan/node.h"
#include "penstock/pipeline/sources/arrow_rows.h"

namespace penstock::python {

// Row groups of files, which a Python object decodes one at a time.
struct RowGroups {
  struct Group {
    uint32_t file = 0;
    uint32_t number = 0;  // in the file
    uint64_t rows = 0;
    uint64_t bytes = 0;      // when it is decoded, about
    uint64_t first_row = 0;  // in the file
    uint64_t end = 0;        // rows of all groups up to and with this one
  };
  std::shared_ptr<void> decoder;  // decoder(number of the group) is its ArrowTable
  SpecRef spec;
  std::vector<Tensor> fills;  // of arrow_fills()
  std::vector<std::string> files;
  std::vector<Group> groups;
  uint64_t cache_bytes = 0;
};

// The rows of row groups. Python threads decode a row group as a whole; decoded ones are kept for
// further rows, up to cache_bytes, and threads share them. In file order, threads that would wait
// for a row group decode the next one. Failures: the decoder's, for all rows of the group; those of
// ArrowRows::read() for a row.
Node::Ref row_groups(RowGroups groups, std::string title);

}  // namespace penstock::python
