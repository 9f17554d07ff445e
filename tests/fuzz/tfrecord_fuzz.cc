// Any bytes as a TFRecord file: the index covers them, and each record is sound, or lost and
// counted. Reading from the front and inflated gives the same.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cpp/io/tfrecords.h"
#include "fuzz/require.h"
#include "penstock/io/record_stream.h"
#include "penstock/io/survey.h"
#include "penstock/io/tfrecord.h"

using namespace penstock;

namespace {

Gained read_stream(TFRecords& world, const std::string& path, Compression compression,
                   size_t most) {
  RecordStream records(
      std::make_shared<StreamFiles>(world.pool, std::vector{path}, std::vector{compression}),
      "tfrecord", tfrecord_framing());
  records.begin();
  Gained gained;
  while (const size_t count = records.read(most)) {
    REQUIRE(count <= most);
    auto failure = records.failures().begin();
    for (size_t i = 0; i < count; ++i) {
      const std::span<const std::byte> bytes = records.row(i).bytes;
      if (failure != records.failures().end() && failure->row == i) {
        ++gained.lost_records;
        gained.lost_bytes += failure->bytes;
        REQUIRE(bytes.empty() && !std::string(records.error_of(*failure++).what()).empty());
      } else {
        gained.payloads.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      }
    }
  }
  return gained;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  TFRecords world;
  (*world.files)["file"].assign(reinterpret_cast<const char*>(data), size);
  auto opened = world.open({"file"});

  const RecordIndex& index = opened->index(0);
  uint64_t end = 0;
  for (uint64_t i = 0; i < index.size(); ++i) {
    const RecordIndex::Place place = index.at(i);
    REQUIRE(place.offset == end && place.bytes > 0);
    // Adjacent damaged places would have been one place.
    REQUIRE(!place.damaged || i == 0 || !index.at(i - 1).damaged);
    end += place.bytes;
  }
  REQUIRE(end == size && index.file_bytes() == size);

  Gained gained = read_all(opened);
  uint64_t kept = 0;
  for (const std::string& payload : gained.payloads) kept += 16 + payload.size();
  REQUIRE(kept + gained.lost_bytes == size);
  REQUIRE(gained.payloads.size() + gained.lost_records == index.size());
  REQUIRE(gained.lost_records >= index.damaged().size());

  const FileSurvey survey = survey_tfrecord(world.files, "file");
  if (survey.compression == Compression::kNone) {  // according to its first bytes
    REQUIRE(survey.records == gained.payloads.size() && survey.file_bytes == size);
    REQUIRE(survey.lost_places == gained.lost_records && survey.lost_bytes == gained.lost_bytes);
  }

  (*world.files)["small"] = compressed((*world.files)["file"], Compression::kZlib);
  for (size_t most : {1, 64}) {
    for (auto [path, compression] :
         {std::pair("file", Compression::kNone), {"small", Compression::kZlib}}) {
      const Gained stream = read_stream(world, path, compression, most);
      REQUIRE(stream.payloads == gained.payloads);
      REQUIRE(stream.lost_records == gained.lost_records);
      REQUIRE(stream.lost_bytes == gained.lost_bytes);
    }
  }
  // Read as compressed data, reading ends, with any result.
  REQUIRE(read_stream(world, "file", Compression::kGzip, 64).payloads ==
          read_stream(world, "file", Compression::kGzip, 3).payloads);

  world.write("again", gained.payloads);
  Gained again = read_all(world.open({"again"}));
  REQUIRE(again.payloads == gained.payloads && again.lost_records == 0);
  return 0;
}
