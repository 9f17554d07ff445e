#include "penstock/io/tar_survey.h"

#include <algorithm>
#include <array>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/io/record_reader.h"
#include "penstock/io/record_stream.h"
#include "penstock/io/tar_index.h"

namespace penstock {
namespace {

class Survey {
 public:
  Survey(const std::string& path, const std::function<void(const TarSample&)>& visit,
         Progress* progress)
      : path_(path), visit_(visit), progress_(progress) {}

  void take(std::span<const std::byte> bytes, uint64_t record, uint64_t offset) {
    const std::string why = sample_.parse(bytes, offset);
    if (!why.empty()) return lose(record, offset, bytes.size(), why);
    uint64_t data = 0;
    for (const TarSample::Field& field : sample_.fields()) {
      const uint64_t size = field.data.size();
      TarSurvey::Field& all = found.fields[field.extension];
      all.least = all.samples == 0 ? size : std::min(all.least, size);
      all.most = std::max(all.most, size);
      ++all.samples;
      data += size;
    }
    found.smallest = found.samples == 0 ? data : std::min(found.smallest, data);
    found.largest = std::max(found.largest, data);
    found.data_bytes += data;
    ++found.samples;
    if (visit_) visit_(sample_);
  }
  void lose(uint64_t record, uint64_t offset, uint64_t bytes, const std::string& why) {
    ++found.lost_places;
    found.lost_bytes += bytes;
    if (found.damage.size() < TarSurvey::kMaxListed) {
      found.damage.push_back({record, offset, bytes, why});
    }
  }
  void check_stop() const {
    if (progress_ != nullptr && progress_->stop.load(std::memory_order_relaxed)) {
      throw Error(Code::kClosed, "survey", "stopped while " + path_ + " was read");
    }
  }
  void reached(uint64_t bytes) const {
    if (progress_ != nullptr) progress_->bytes.store(bytes, std::memory_order_relaxed);
    check_stop();
  }

  TarSurvey found;

 private:
  const std::string& path_;
  const std::function<void(const TarSample&)>& visit_;
  Progress* const progress_;
  TarSample sample_;
};

void read_compressed(Survey& survey, const std::shared_ptr<FilePool>& pool,
                     const std::string& path) {
  auto one =
      std::make_shared<StreamFiles>(pool, std::vector{path}, std::vector{survey.found.compression});
  RecordStream records(std::move(one), "tar", tar_framing(), [&] { survey.check_stop(); });
  records.begin();
  while (const size_t count = records.read(RecordStream::kChunk)) {
    auto failure = records.failures().begin();
    for (size_t i = 0; i < count; ++i) {
      const auto& [place, bytes] = records.row(i);
      if (failure != records.failures().end() && failure->row == i) {
        survey.lose(place.record, place.offset, failure->bytes, failure->why);
        ++failure;
      } else {
        survey.take(bytes, place.record, place.offset);
      }
    }
    survey.reached(2 * records.used());
  }
}

void read_indexed(Survey& survey, File& file, const RecordIndex& index) {
  std::vector<std::byte> buffer;
  for (uint64_t record = 0; record < index.size(); ++record) {
    const RecordIndex::Place place = index.at(record);
    if (place.damaged) {
      survey.lose(record, place.offset, place.bytes, explain_tar_damage(file, place));
    } else {
      if (buffer.size() < place.bytes) buffer.resize(place.bytes);
      const File::Segment segment{place.offset, buffer.data(), place.bytes};
      file.read({&segment, 1});
      survey.take(std::span(buffer).first(place.bytes), record, place.offset);
    }
    survey.reached(index.file_bytes() + place.offset + place.bytes);
  }
}

}  // namespace

TarSurvey survey_tar(const std::shared_ptr<FileSystem>& files, const std::string& path,
                     const std::function<void(const TarSample&)>& visit, Progress* progress) {
  const auto pool = std::make_shared<FilePool>(files);
  const std::shared_ptr<File> file = pool->get(pool->add(path));
  Survey survey(path, visit, progress);
  survey.found.compression = compression_of_tar(*file);
  survey.found.file_bytes = file->size();
  if (survey.found.compression != Compression::kNone) {
    read_compressed(survey, pool, path);
  } else {
    read_indexed(survey, *file, index_tar(*file, progress));
  }
  return std::move(survey.found);
}

}  // namespace penstock
