// Any bytes as a tar archive: the index covers them, and what is read from it is a sample or lost;
// from the front the same samples come, save what damage takes; what was read can be written, and
// is the same then.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fuzz/reading.h"
#include "fuzz/require.h"
#include "penstock/base/error.h"
#include "penstock/io/survey.h"
#include "penstock/io/tar.h"
#include "penstock/io/tar_index.h"
#include "penstock/io/tar_writer.h"

using namespace penstock;

namespace {

struct Sample {
  std::string key;
  std::vector<std::pair<std::string, std::string>> fields;
  bool operator==(const Sample&) const = default;
};
using Samples = std::vector<Sample>;

Sample copy_of(const TarSample& sample) {
  Sample copy{sample.key(), {}};
  for (const auto& [extension, data] : sample.fields()) {
    copy.fields.emplace_back(extension,
                             std::string(reinterpret_cast<const char*>(data.data()), data.size()));
  }
  REQUIRE(!copy.fields.empty());
  return copy;
}

// Of records, those that are samples.
Samples samples_of(const Records& records) {
  Samples samples;
  for (const std::optional<std::string>& record : records) {
    if (!record) continue;
    TarSample sample;
    if (sample.parse(std::as_bytes(std::span(*record)), 0).empty()) {
      samples.push_back(copy_of(sample));
    }
  }
  return samples;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  TFRecords world;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  (*world.files)["file"] = bytes;
  const auto file = world.files->open("file");

  const RecordIndex index = index_tar(*file);
  uint64_t end = 0;
  Records records;
  for (uint64_t i = 0; i < index.size(); ++i) {
    const RecordIndex::Place place = index.at(i);
    REQUIRE(place.offset == end && place.bytes > 0);
    end += place.bytes;
    records.emplace_back();
    if (place.damaged) {
      REQUIRE(!explain_tar_damage(*file, place).empty());
    } else {
      records.back() = bytes.substr(place.offset, place.bytes);
    }
  }
  REQUIRE((end == size || index.size() == 0) && index.file_bytes() == size);
  const Samples samples = samples_of(records);

  (*world.files)["small"] = compressed(bytes, Compression::kGzip);
  const auto read = [&](const char* path, Compression compression, size_t most) {
    return from_the_front({world.pool, {path}, {compression}}, "tar", tar_framing(), most);
  };
  const Records front = read("file", Compression::kNone, 64);
  for (size_t most : {1, 3}) {
    REQUIRE(read("file", Compression::kNone, most) == front);
    REQUIRE(read("small", Compression::kGzip, most) == front);
  }
  REQUIRE(read("file", Compression::kGzip, 64) == read("file", Compression::kGzip, 3));
  const Samples streamed = samples_of(front);
  if (index.damaged().empty()) {
    REQUIRE(streamed == samples);
    REQUIRE(std::count(front.begin(), front.end(), std::nullopt) == 0);
  } else {  // from the front, samples beside damage come with what is left of them
    auto next = streamed.begin();
    for (const Sample& sample : samples) {
      next = std::find(next, streamed.end(), sample);
      REQUIRE(next != streamed.end());
      ++next;
    }
  }
  (void)first_tar_fields(file, Compression::kNone);
  (void)first_tar_fields(world.files->open("small"), Compression::kGzip);

  try {
    const TarSurvey survey = survey_tar(world.files, "file");
    if (survey.compression == Compression::kNone) {
      REQUIRE(survey.records == samples.size());
      REQUIRE(survey.records + survey.lost_places == index.size());
    }
  } catch (const Error& error) {  // a compression that is not read
    REQUIRE(error.code() == Code::kInvalidArgument);
  }

  TarWriter writer(*world.files, "again");
  Samples written;
  for (const Sample& sample : samples) {
    if (!written.empty() && written.back().key == sample.key) continue;
    std::vector<TarWriter::Field> fields;
    for (const auto& [extension, text] : sample.fields) {
      fields.push_back({extension, std::as_bytes(std::span(text))});
    }
    writer.write(sample.key, fields);
    written.push_back(sample);
  }
  writer.close();
  Samples again;
  const TarSurvey sound = survey_tar(
      world.files, "again", [&](const TarSample& sample) { again.push_back(copy_of(sample)); });
  REQUIRE(again == written && sound.lost_places == 0);
  return 0;
}
