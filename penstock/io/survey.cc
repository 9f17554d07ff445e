#include "penstock/io/survey.h"

#include <algorithm>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/io/example_decoder.h"
#include "penstock/io/file_pool.h"
#include "penstock/io/record_stream.h"
#include "penstock/io/tar_index.h"
#include "penstock/io/tfrecord.h"

namespace penstock {

namespace {

// A pass over the records of one file. `found` and `path` must outlive it.
class Survey {
 public:
  Survey(FileSurvey& found, const std::shared_ptr<FileSystem>& files, const std::string& path,
         Progress* progress)
      : found_(found),
        path_(path),
        progress_(progress),
        pool_(std::make_shared<FilePool>(files)),
        file_(pool_->get(pool_->add(path))) {
    found.file_bytes = file_->size();
  }
  virtual ~Survey() = default;

  File& file() { return *file_; }

  void read_compressed(Compression compression, const char* operation,
                       std::unique_ptr<Framing> framing) {
    found_.compression = compression;
    auto one = std::make_shared<StreamFiles>(pool_, std::vector{path_}, std::vector{compression});
    RecordStream records(std::move(one), operation, std::move(framing), [this] { check_stop(); });
    records.begin();
    while (const size_t count = records.read(RecordStream::kChunk)) {
      auto failure = records.failures().begin();
      for (size_t i = 0; i < count; ++i) {
        const auto& [place, bytes] = records.row(i);
        if (failure != records.failures().end() && failure->row == i) {
          lose(place.record, {place.offset, failure->bytes}, failure->why);
          ++failure;
        } else {
          take(bytes, place.record, place.offset);
        }
      }
      reached(2 * records.used());
    }
  }

 protected:
  // The record of a stream's row.
  virtual void take(std::span<const std::byte> bytes, uint64_t record, uint64_t offset) = 0;

  void count(uint64_t bytes) {
    found_.smallest = found_.records == 0 ? bytes : std::min(found_.smallest, bytes);
    found_.largest = std::max(found_.largest, bytes);
    found_.payload_bytes += bytes;
    ++found_.records;
  }
  void lose(uint64_t record, const RecordIndex::Place& place, const std::string& why) {
    ++found_.lost_places;
    found_.lost_bytes += place.bytes;
    if (found_.damage.size() < FileSurvey::kMaxListed) {
      found_.damage.push_back({record, place.offset, place.bytes, why});
    }
  }
  void reached(uint64_t bytes) const {
    if (progress_ != nullptr) progress_->bytes.store(bytes, std::memory_order_relaxed);
    check_stop();
  }

 private:
  void check_stop() const {
    if (progress_ != nullptr && progress_->stop.load(std::memory_order_relaxed)) {
      throw Error(Code::kClosed, "survey", "stopped while " + path_ + " was read");
    }
  }

  FileSurvey& found_;
  const std::string& path_;
  Progress* const progress_;
  const std::shared_ptr<FilePool> pool_;
  const std::shared_ptr<File> file_;
};

using VisitPayload = std::function<void(std::span<const std::byte>)>;

// nullptr: the frame is valid. REQUIRED: the index has no damage here.
const char* fault_since_index(std::span<const std::byte> frame) {
  using namespace tfrecord;
  const uint64_t bytes = frame.size() - kFrame;
  if (!length_checksum_matches(frame.data()) || load<uint64_t>(frame.data()) != bytes) {
    return "the length has changed since the file was indexed";
  }
  if (!checksum_matches(frame.subspan(kHeader, bytes), frame.data() + kHeader + bytes)) {
    return "the checksum of the payload does not match";
  }
  return nullptr;
}

class SurveyOfTFRecord : public Survey {
 public:
  SurveyOfTFRecord(FileSurvey& found, const std::shared_ptr<FileSystem>& files,
                   const std::string& path, const VisitPayload& visit, Progress* progress)
      : Survey(found, files, path, progress), visit_(visit) {}

  void read_indexed(const RecordIndex& index) {
    constexpr uint64_t kChunkBytes = 1 << 20;
    std::vector<std::byte> buffer;
    for (uint64_t record = 0; record < index.size();) {
      RecordIndex::Place place = index.at(record);
      if (place.damaged) {
        lose(record++, place, "no valid record begins here");
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
      file().read({&segment, 1});
      for (; record < after; ++record) {
        place = index.at(record);
        const std::span frame(buffer.data() + (place.offset - begin), place.bytes);
        if (const char* why = fault_since_index(frame); why != nullptr) {
          lose(record, place, why);
        } else {
          take(frame.subspan(tfrecord::kHeader, place.bytes - tfrecord::kFrame), record,
               place.offset);
        }
      }
      reached(index.file_bytes() + end);
    }
  }

 private:
  void take(std::span<const std::byte> payload, uint64_t, uint64_t) override {
    count(payload.size());
    if (visit_) visit_(payload);
  }

  const VisitPayload& visit_;
};

class SurveyOfTar : public Survey {
 public:
  SurveyOfTar(TarSurvey& found, const std::shared_ptr<FileSystem>& files, const std::string& path,
              const std::function<void(const TarSample&)>& visit, Progress* progress)
      : Survey(found, files, path, progress), fields_(found.fields), visit_(visit) {}

  void read_indexed(const RecordIndex& index) {
    std::vector<std::byte> buffer;
    for (uint64_t record = 0; record < index.size(); ++record) {
      const RecordIndex::Place place = index.at(record);
      if (place.damaged) {
        lose(record, place, explain_tar_damage(file(), place));
      } else {
        if (buffer.size() < place.bytes) buffer.resize(place.bytes);
        const File::Segment segment{place.offset, buffer.data(), place.bytes};
        file().read({&segment, 1});
        take(std::span(buffer).first(place.bytes), record, place.offset);
      }
      reached(index.file_bytes() + place.offset + place.bytes);
    }
  }

 private:
  void take(std::span<const std::byte> bytes, uint64_t record, uint64_t offset) override {
    const std::string why = sample_.parse(bytes, offset);
    if (!why.empty()) return lose(record, {offset, bytes.size()}, why);
    uint64_t data = 0;
    for (const TarSample::Field& field : sample_.fields()) {
      const uint64_t size = field.data.size();
      TarSurvey::Field& all = fields_[field.extension];
      all.least = all.samples == 0 ? size : std::min(all.least, size);
      all.most = std::max(all.most, size);
      ++all.samples;
      data += size;
    }
    count(data);
    if (visit_) visit_(sample_);
  }

  std::map<std::string, TarSurvey::Field>& fields_;
  const std::function<void(const TarSample&)>& visit_;
  TarSample sample_;
};

}  // namespace

FileSurvey survey_tfrecord(const std::shared_ptr<FileSystem>& files, const std::string& path,
                           const VisitPayload& visit, Progress* progress) {
  FileSurvey found;
  SurveyOfTFRecord survey(found, files, path, visit, progress);
  if (const Compression how = compression_of_tfrecord(survey.file()); how != Compression::kNone) {
    survey.read_compressed(how, "tfrecord", tfrecord_framing());
  } else {
    survey.read_indexed(index_tfrecord(survey.file(), progress));
  }
  return found;
}

TarSurvey survey_tar(const std::shared_ptr<FileSystem>& files, const std::string& path,
                     const std::function<void(const TarSample&)>& visit, Progress* progress) {
  TarSurvey found;
  SurveyOfTar survey(found, files, path, visit, progress);
  if (const Compression how = compression_of_tar(survey.file()); how != Compression::kNone) {
    survey.read_compressed(how, "tar", tar_framing());
  } else {
    survey.read_indexed(index_tar(survey.file(), progress));
  }
  return found;
}

void ExampleSurvey::add(std::span<const std::byte> record) {
  ++record_;
  const auto* begin = reinterpret_cast<wire::Pointer>(record.data());
  bool any = false, lists = false;
  if (!example({begin, begin + record.size()}, any, lists) || !(any || lists)) {
    ++others_;
    return;
  }
  ++examples_;
  sequences_ += lists;
}

bool ExampleSurvey::example(wire::Span message, bool& any, bool& lists) {
  wire::Fields fields(message);
  while (fields.next()) {
    if (fields.is(2, wire::kBytes)) lists = true;
    if (!fields.is(1, wire::kBytes)) continue;
    wire::Fields entries(fields.body());
    while (entries.next()) {
      if (!entries.is(1, wire::kBytes)) continue;
      if (!entry(entries.body())) return false;
      any = true;
    }
    if (entries.fault() != ExampleFault::kNone) return false;
  }
  return fields.fault() == ExampleFault::kNone;
}

bool ExampleSurvey::entry(wire::Span entry) {
  std::string_view name;
  wire::Fields fields(entry);
  while (fields.next()) {
    if (!fields.is(1, wire::kBytes)) continue;
    name = {reinterpret_cast<const char*>(fields.body().begin), fields.body().size()};
  }
  ExampleContents contents;
  ExampleErrorPlace place;
  if (fields.fault() != ExampleFault::kNone ||
      contents_of(entry, true, contents, place) != ExampleFault::kNone) {
    return false;
  }
  auto found = features_.find(name);
  if (found == features_.end()) {
    if (features_.size() == kMaxNames) return true;
    found = features_.emplace(name, Feature{}).first;
  }
  Feature& feature = found->second;
  if (feature.last == record_) return true;  // a repeated name
  feature.last = record_;
  const bool first = feature.records++ == 0;
  ++feature.of_type[contents.type];
  feature.least = first ? contents.values : std::min(feature.least, contents.values);
  feature.most = std::max(feature.most, contents.values);
  feature.least_bytes = first ? contents.bytes : std::min(feature.least_bytes, contents.bytes);
  feature.most_bytes = std::max(feature.most_bytes, contents.bytes);
  return true;
}

}  // namespace penstock
