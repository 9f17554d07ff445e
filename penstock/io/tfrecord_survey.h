#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/io/compression.h"
#include "penstock/io/file.h"
#include "penstock/io/tfrecord_index.h"

namespace penstock {

// What is in a TFRecord file, and what is wrong with it.
struct TFRecordSurvey {
  struct Damage {
    uint64_t record, offset;  // of what was inflated, in a compressed file
    uint64_t bytes;           // that are lost; of the file, if its compressed bytes are damaged
    std::string why;
  };
  static constexpr size_t kMostListed = 10'000;

  Compression compression = Compression::kNone;
  uint64_t file_bytes = 0;
  uint64_t records = 0;                      // that are sound
  uint64_t payload_bytes = 0;                // of these
  uint64_t smallest = 0, largest = 0;        // payload, if there is a record
  uint64_t lost_places = 0, lost_bytes = 0;  // places as RecordIndex has them
  std::vector<Damage> damage;                // the first kMostListed, in order
};

// Reads a whole TFRecord file, in order, and verifies both checksums of every record. `visit` is
// given each sound payload, a view for the call. Memory: the index, and a MiB or the largest
// record. Goes over a file that is not compressed twice, the first time over its length fields
// only; over any, `progress->bytes` ends at twice its size.
//
// Error as FileSystem::open's; as index_tfrecord's, now and while it is read; what `visit` throws.
// Any thread.
TFRecordSurvey survey_tfrecord(const std::shared_ptr<FileSystem>& files, const std::string& path,
                               const std::function<void(std::span<const std::byte>)>& visit = {},
                               Progress* progress = nullptr);

}  // namespace penstock
