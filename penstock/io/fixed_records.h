#pragma once

#include <cstdint>
#include <memory>

#include "penstock/io/compression.h"
#include "penstock/io/file.h"
#include "penstock/io/framing.h"
#include "penstock/io/record_index.h"

namespace penstock {

// The index of a file that consists of a header, records of `record_bytes` bytes, and a footer.
// Only the file's size is read. Error kDataLoss, which names the file, if the size does not match a
// whole number of records; kSystem. Any thread. REQUIRED: record_bytes > 0.
RecordIndex index_fixed_records(File& file, uint64_t record_bytes, uint64_t header_bytes,
                                uint64_t footer_bytes);

// The same records, after the header, for reading a file from the front. An incomplete record
// before the footer is a lost record.
std::unique_ptr<Framing> fixed_framing(uint64_t record_bytes, uint64_t footer_bytes);

// How such a file is compressed: gzip by its first bytes or its name. (zlib is not detected:
// records may look like it.) Error kSystem. Any thread.
Compression compression_of_fixed(File& file);

// Error kDataLoss, which names the file: it is shorter than its header and footer together, or its
// compressed bytes are damaged within that length.
void check_header_and_footer(const std::shared_ptr<File>& file, Compression compression,
                             uint64_t header_bytes, uint64_t footer_bytes);

}  // namespace penstock
