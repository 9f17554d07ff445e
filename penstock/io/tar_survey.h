#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "penstock/io/compression.h"
#include "penstock/io/file.h"
#include "penstock/io/record_index.h"
#include "penstock/io/tar.h"

namespace penstock {

// The contents of a tar archive of samples, and its damage.
struct TarSurvey {
  struct Damage {
    uint64_t record, offset;  // offset: after decompression
    uint64_t bytes;           // lost; of the file, if its compressed bytes are damaged
    std::string why;
  };
  struct Field {
    uint64_t samples = 0;          // that have it
    uint64_t least = 0, most = 0;  // bytes of its data
  };
  static constexpr size_t kMaxListed = 10'000;

  Compression compression = Compression::kNone;
  uint64_t file_bytes = 0;
  uint64_t samples = 0;                      // valid ones
  uint64_t data_bytes = 0;                   // of the fields of these
  uint64_t smallest = 0, largest = 0;        // data of one sample, if there are samples
  std::map<std::string, Field> fields;       // of these, by extension
  uint64_t lost_places = 0, lost_bytes = 0;  // places as in RecordIndex
  std::vector<Damage> damage;                // the first kMaxListed, in order
};

// Reads a whole archive in order, and takes every sample apart. Calls `visit` with each valid one,
// whose views last as long as the call. Uses memory for the index and the largest sample; of a
// compressed file for 64 samples, at most 1 MiB or the largest. For any file,
// `progress->bytes` ends at twice its size.
//
// Error as FileSystem::open() and index_tar(); what `visit` throws. Any thread.
TarSurvey survey_tar(const std::shared_ptr<FileSystem>& files, const std::string& path,
                     const std::function<void(const TarSample&)>& visit = {},
                     Progress* progress = nullptr);

}  // namespace penstock
