#include "penstock/io/tfrecord_survey.h"

#include <algorithm>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/io/record_stream.h"
#include "penstock/io/tfrecord.h"

namespace penstock {

using namespace tfrecord;

namespace {

constexpr uint64_t kChunkBytes = 1 << 20;

// nullptr: the frame is valid. REQUIRED: the index has no damage here.
const char* fault_since_index(std::span<const std::byte> frame) {
  const uint64_t bytes = frame.size() - kFrame;
  if (!length_checksum_matches(frame.data()) || load<uint64_t>(frame.data()) != bytes) {
    return "the length has changed since the file was indexed";
  }
  if (!checksum_matches(frame.subspan(kHeader, bytes), frame.data() + kHeader + bytes)) {
    return "the checksum of the payload does not match";
  }
  return nullptr;
}

void lose(TFRecordSurvey& survey, uint64_t record, const RecordIndex::Place& place,
          const std::string& why) {
  ++survey.lost_places;
  survey.lost_bytes += place.bytes;
  if (survey.damage.size() < TFRecordSurvey::kMaxListed) {
    survey.damage.push_back({record, place.offset, place.bytes, why});
  }
}

void count_record(TFRecordSurvey& survey, uint64_t bytes) {
  survey.smallest = survey.records == 0 ? bytes : std::min(survey.smallest, bytes);
  survey.largest = std::max(survey.largest, bytes);
  survey.payload_bytes += bytes;
  ++survey.records;
}

void check_stop(const Progress* progress, const std::string& path) {
  if (progress != nullptr && progress->stop.load(std::memory_order_relaxed)) {
    throw Error(Code::kClosed, "survey", "stopped while " + path + " was read");
  }
}

using Visit = std::function<void(std::span<const std::byte>)>;

TFRecordSurvey survey_compressed(const std::shared_ptr<FileSystem>& files, const std::string& path,
                                 Compression compression, const Visit& visit, Progress* progress) {
  TFRecordSurvey survey;
  survey.compression = compression;
  auto pool = std::make_shared<FilePool>(files);
  survey.file_bytes = pool->get(pool->add(path))->size();
  auto one =
      std::make_shared<StreamFiles>(std::move(pool), std::vector{path}, std::vector{compression});
  RecordStream records(std::move(one), "tfrecord", tfrecord_framing(),
                       [&] { check_stop(progress, path); });
  records.begin();
  while (const size_t count = records.read(RecordStream::kChunk)) {
    auto failure = records.failures().begin();
    for (size_t i = 0; i < count; ++i) {
      const auto& [place, bytes] = records.row(i);
      if (failure != records.failures().end() && failure->row == i) {
        lose(survey, place.record, {place.offset, failure->bytes}, failure->why);
        ++failure;
        continue;
      }
      count_record(survey, bytes.size());
      if (visit) visit(bytes);
    }
    if (progress != nullptr) {
      progress->bytes.store(2 * records.used(), std::memory_order_relaxed);
    }
  }
  return survey;
}

}  // namespace

TFRecordSurvey survey_tfrecord(const std::shared_ptr<FileSystem>& files, const std::string& path,
                               const Visit& visit, Progress* progress) {
  const std::shared_ptr<File> opened = files->open(path);
  File& file = *opened;
  if (Compression found = compression_of_tfrecord(file); found != Compression::kNone) {
    return survey_compressed(files, path, found, visit, progress);
  }
  const RecordIndex index = index_tfrecord(file, progress);
  TFRecordSurvey survey;
  survey.file_bytes = index.file_bytes();
  std::vector<std::byte> buffer;
  for (uint64_t record = 0; record < index.size();) {
    RecordIndex::Place place = index.at(record);
    if (place.damaged) {
      lose(survey, record++, place, "no valid record begins here");
      continue;
    }
    // As many adjacent records as fit into one read; at least one.
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
      if (const char* why = fault_since_index(frame); why != nullptr) {
        lose(survey, record, place, why);
        continue;
      }
      count_record(survey, place.bytes - kFrame);
      if (visit) visit(frame.subspan(kHeader, place.bytes - kFrame));
    }
    if (progress == nullptr) continue;
    progress->bytes.store(survey.file_bytes + end, std::memory_order_relaxed);
    check_stop(progress, path);
  }
  return survey;
}

}  // namespace penstock
