// Any bytes as a TFRecord file: the index covers them, and what is read from it is sound, or lost
// and counted.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cpp/io/tfrecords.h"
#include "fuzz/require.h"
#include "penstock/io/tfrecord_survey.h"

using namespace penstock;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  TFRecords world;
  (*world.files)["file"].assign(reinterpret_cast<const char*>(data), size);
  auto opened = world.open({"file"});

  const RecordIndex& index = opened->index(0);
  uint64_t end = 0;
  for (uint64_t i = 0; i < index.size(); ++i) {
    const RecordIndex::Place place = index.at(i);
    REQUIRE(place.offset == end && place.bytes > 0);
    // Two stretches without a record would have been one.
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

  const TFRecordSurvey survey = survey_tfrecord(*world.files->open("file"));
  REQUIRE(survey.records == gained.payloads.size() && survey.file_bytes == size);
  REQUIRE(survey.lost_places == gained.lost_records && survey.lost_bytes == gained.lost_bytes);

  world.write("again", gained.payloads);
  Gained again = read_all(world.open({"again"}));
  REQUIRE(again.payloads == gained.payloads && again.lost_records == 0);
  return 0;
}
