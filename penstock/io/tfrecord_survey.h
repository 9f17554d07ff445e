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
#include "penstock/io/tfrecord.h"

namespace penstock {

// The contents of a TFRecord file, and its damage.
struct TFRecordSurvey {
  struct Damage {
    uint64_t record, offset;  // offset: after decompression
    uint64_t bytes;           // lost; of the file, if its compressed bytes are damaged
    std::string why;
  };
  static constexpr size_t kMaxListed = 10'000;

  Compression compression = Compression::kNone;
  uint64_t file_bytes = 0;
  uint64_t records = 0;                      // valid ones
  uint64_t payload_bytes = 0;                // of these
  uint64_t smallest = 0, largest = 0;        // payload, if there are records
  uint64_t lost_places = 0, lost_bytes = 0;  // places as in RecordIndex
  std::vector<Damage> damage;                // the first kMaxListed, in order
};

// Reads a whole TFRecord file in order, and verifies both checksums of every record. Calls `visit`
// with each valid payload, a view for the duration of the call. Uses memory for the index, and 1
// MiB or the largest record. A file that is not compressed is read twice, the first time only its
// length fields. For any file, `progress->bytes` ends at twice its size.
//
// Errors as of FileSystem::open() and index_tfrecord(), and exceptions of `visit`. Any thread.
TFRecordSurvey survey_tfrecord(const std::shared_ptr<FileSystem>& files, const std::string& path,
                               const std::function<void(std::span<const std::byte>)>& visit = {},
                               Progress* progress = nullptr);

}  // namespace penstock
