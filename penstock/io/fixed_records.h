#pragma once

#include <cstdint>

#include "penstock/io/file.h"
#include "penstock/io/record_index.h"

namespace penstock {

// Where the records of a file lie that is a header, records of `record_bytes` bytes, and a footer.
// Nothing of it is read. Error kDataLoss if the file's length is not that of whole records; it
// names the file. kSystem. Any thread. REQUIRED: record_bytes > 0.
RecordIndex index_fixed_records(File& file, uint64_t record_bytes, uint64_t header_bytes,
                                uint64_t footer_bytes);

}  // namespace penstock
