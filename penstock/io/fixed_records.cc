#include "penstock/io/fixed_records.h"

#include <string>

#include "penstock/base/error.h"

namespace penstock {

RecordIndex index_fixed_records(File& file, uint64_t record_bytes, uint64_t header_bytes,
                                uint64_t footer_bytes) {
  const uint64_t size = file.size();
  if (header_bytes > size || footer_bytes > size - header_bytes) {
    throw Error(
        Code::kDataLoss, "fixed_records",
        file.path() + " has " + std::to_string(size) + " bytes, fewer than its header and footer");
  }
  const uint64_t body = size - header_bytes - footer_bytes;
  if (body % record_bytes != 0) {
    throw Error(Code::kDataLoss, "fixed_records",
                file.path() + " has " + std::to_string(body) +
                    " bytes of records, which is no whole number of " +
                    std::to_string(record_bytes) +
                    " bytes each: " + std::to_string(body % record_bytes) + " are left over");
  }
  return RecordIndex::equal(header_bytes, record_bytes, body / record_bytes);
}

}  // namespace penstock
