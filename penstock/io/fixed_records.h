#pragma once

#include <cstdint>
#include <memory>

#include "penstock/io/compression.h"
#include "penstock/io/file.h"
#include "penstock/io/framing.h"
#include "penstock/io/record_index.h"

namespace penstock {

// Where the records of a file lie that is a header, records of `record_bytes` bytes, and a footer.
// Nothing of it is read. Error kDataLoss if the file's length is not that of whole records; it
// names the file. kSystem. Any thread. REQUIRED: record_bytes > 0.
RecordIndex index_fixed_records(File& file, uint64_t record_bytes, uint64_t header_bytes,
                                uint64_t footer_bytes);

// The same records, behind the header, for whoever goes through a file from the front. What is left
// over in front of the footer is a record that is lost.
std::unique_ptr<Framing> fixed_framing(uint64_t record_bytes, uint64_t footer_bytes);

// How such a file is compressed: gzip if it begins so or is named so. (What a zlib file begins with
// may be a record.) Error kSystem. Any thread.
Compression compression_of_fixed(File& file);

// Error kDataLoss, which names the file: it has fewer bytes than its header and footer, or is
// damaged within as many.
void check_ends(const std::shared_ptr<File>& file, Compression compression, uint64_t header_bytes,
                uint64_t footer_bytes);

}  // namespace penstock
