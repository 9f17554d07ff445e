#include "penstock/io/tfrecord_survey.h"

#include <algorithm>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/io/tfrecord_frame.h"

namespace penstock {

using namespace tfrecord;

namespace {

constexpr uint64_t kChunkBytes = 1 << 20;

// nullptr: nothing. REQUIRED: the index has no damage here.
const char* wrong_with(std::span<const std::byte> frame) {
  const uint64_t bytes = frame.size() - kFrame;
  if (!length_agrees(frame.data()) || load<uint64_t>(frame.data()) != bytes) {
    return "the length has changed since the file was indexed";
  }
  if (!agree(frame.subspan(kHeader, bytes), frame.data() + kHeader + bytes)) {
    return "the payload does not agree with its checksum";
  }
  return nullptr;
}

void lose(TFRecordSurvey& survey, uint64_t record, const RecordIndex::Place& place,
          const char* why) {
  ++survey.lost_places;
  survey.lost_bytes += place.bytes;
  if (survey.damage.size() < TFRecordSurvey::kMostListed) {
    survey.damage.push_back({record, place.offset, place.bytes, why});
  }
}

void count(TFRecordSurvey& survey, uint64_t bytes) {
  survey.smallest = survey.records == 0 ? bytes : std::min(survey.smallest, bytes);
  survey.largest = std::max(survey.largest, bytes);
  survey.payload_bytes += bytes;
  ++survey.records;
}

}  // namespace

TFRecordSurvey survey_tfrecord(File& file,
                               const std::function<void(std::span<const std::byte>)>& visit,
                               Progress* progress) {
  const RecordIndex index = index_tfrecord(file, progress);
  TFRecordSurvey survey;
  survey.file_bytes = index.file_bytes();
  std::vector<std::byte> buffer;
  for (uint64_t record = 0; record < index.size();) {
    RecordIndex::Place place = index.at(record);
    if (place.damaged) {
      lose(survey, record++, place, "no record can be read here");
      continue;
    }
    // As many that follow one another as are read together; one at least.
    const uint64_t begin = place.offset;
    uint64_t end = begin, after = record;
    while (!place.damaged &&
           (after == record || place.offset + place.bytes - begin <= kChunkBytes)) {
      end = place.offset + place.bytes;
      if (++after == index.size()) break;
      place = index.at(after);
    }
    if (buffer.size() < end - begin) buffer.resize(end - begin);
    const File::Segment segment{begin, buffer.data(), end - begin};
    file.read({&segment, 1});
    for (; record < after; ++record) {
      place = index.at(record);
      const std::span frame(buffer.data() + (place.offset - begin), place.bytes);
      if (const char* why = wrong_with(frame); why != nullptr) {
        lose(survey, record, place, why);
        continue;
      }
      count(survey, place.bytes - kFrame);
      if (visit) visit(frame.subspan(kHeader, place.bytes - kFrame));
    }
    if (progress == nullptr) continue;
    progress->bytes.store(survey.file_bytes + end, std::memory_order_relaxed);
    if (progress->stop.load(std::memory_order_relaxed)) {
      throw Error(Code::kClosed, "survey", "stopped while " + file.path() + " was read");
    }
  }
  return survey;
}

}  // namespace penstock
