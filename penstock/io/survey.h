#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/io/compression.h"
#include "penstock/io/example_wire.h"
#include "penstock/io/file.h"
#include "penstock/io/record_index.h"
#include "penstock/io/tar.h"

namespace penstock {

// The contents of a file of records, and its damage.
struct FileSurvey {
  struct Damage {
    uint64_t record, offset;  // offset: after decompression
    uint64_t bytes;           // lost; of the file, if its compressed bytes are damaged
    std::string why;
  };
  static constexpr size_t kMaxListed = 10'000;

  Compression compression = Compression::kNone;
  uint64_t file_bytes = 0;
  uint64_t records = 0;                      // valid ones; of a tar archive: samples
  uint64_t payload_bytes = 0;                // of these
  uint64_t smallest = 0, largest = 0;        // payload of one, if there are any
  uint64_t lost_places = 0, lost_bytes = 0;  // places as in RecordIndex
  std::vector<Damage> damage;                // the first kMaxListed, in order
};

// Reads a whole TFRecord file in order, and verifies both checksums of every record. Calls `visit`
// with each valid payload, a view for the duration of the call. Uses memory for the index, and 1
// MiB or the largest record. A file that is not compressed is read twice, the first time only its
// length fields. For any file, `progress->bytes` ends at twice its size.
//
// Errors as of FileSystem::open() and index_tfrecord(), and exceptions of `visit`. Any thread.
FileSurvey survey_tfrecord(const std::shared_ptr<FileSystem>& files, const std::string& path,
                           const std::function<void(std::span<const std::byte>)>& visit = {},
                           Progress* progress = nullptr);

struct TarSurvey : FileSurvey {
  struct Field {
    uint64_t samples = 0;          // that have it
    uint64_t least = 0, most = 0;  // bytes of its data
  };
  std::map<std::string, Field> fields;  // of the valid samples, by extension
};

// Reads a whole archive in order, and takes every sample apart. Calls `visit` with each valid one,
// whose views last as long as the call. Uses memory for the index and the largest sample; of a
// compressed file for 64 samples, at most 1 MiB or the largest. For any file,
// `progress->bytes` ends at twice its size.
//
// Errors as of FileSystem::open() and index_tar(), and exceptions of `visit`. Any thread.
TarSurvey survey_tar(const std::shared_ptr<FileSystem>& files, const std::string& path,
                     const std::function<void(const TarSample&)>& visit = {},
                     Progress* progress = nullptr);

// Collects which features tf.Examples have, from every feature of every record. One thread.
class ExampleSurvey {
 public:
  struct Feature {
    uint64_t records = 0;               // with the feature
    std::array<uint64_t, 4> of_type{};  // of these, by ExampleFeature::Type; 0: no list in it
    uint64_t least = 0, most = 0;       // values in one record; of bytes: strings
    uint64_t least_bytes = 0, most_bytes = 0;  // of bytes: all strings of a record
    uint64_t last = 0;                         // number of the last record that has it, from 1
  };
  static constexpr size_t kMaxNames = 4096;

  // The next record.
  void add(std::span<const std::byte> record);

  uint64_t examples() const { return examples_; }    // valid records with at least one feature
  uint64_t sequences() const { return sequences_; }  // of these: with lists of steps
  uint64_t others() const { return others_; }        // all other records
  // By name, at most kMaxNames. Of an invalid record, the features before the fault are counted.
  const std::map<std::string, Feature, std::less<>>& features() const { return features_; }

 private:
  bool example(wire::Span message, bool& any, bool& lists);
  bool entry(wire::Span entry);

  uint64_t examples_ = 0, sequences_ = 0, others_ = 0, record_ = 0;
  std::map<std::string, Feature, std::less<>> features_;
};

}  // namespace penstock
