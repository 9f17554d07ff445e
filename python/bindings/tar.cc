#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "buffer.h"
#include "gil.h"
#include "module.h"
#include "penstock/base/cancellation.h"
#include "penstock/base/error.h"
#include "penstock/io/tar_survey.h"
#include "penstock/io/tar_writer.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

// A TarWriter that any thread may use, one after the other. Never called with the GIL held.
class SampleWriter {
 public:
  SampleWriter(const std::filesystem::path& path, const std::string& compression)
      : files_(posix_files()),
        writer_(std::in_place, *files_, path, compression_from_name(compression, "tar")) {}

  void write(const std::string& key, std::span<const TarWriter::Field> fields) {
    std::lock_guard lock(mutex_);
    if (!writer_) throw Error(Code::kClosed, "tar", "the file was closed");
    writer_->write(key, fields);
    samples_ = writer_->samples();
    bytes_ = writer_->bytes();
  }
  void close() {
    std::lock_guard lock(mutex_);
    if (writer_) {
      writer_->close();
      bytes_ = writer_->bytes();
    }
    writer_.reset();
  }
  void discard() {
    std::lock_guard lock(mutex_);
    writer_.reset();
  }
  uint64_t samples() const { return samples_; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::mutex mutex_;
  const std::shared_ptr<FileSystem> files_;
  std::optional<TarWriter> writer_;  // nullopt: closed
  std::atomic<uint64_t> samples_{0}, bytes_{0};
};

// (extension, bytes) each.
void write_sample(SampleWriter& writer, const std::string& key, nb::list fields) {
  std::vector<std::string> names;
  std::vector<Buffer> buffers;
  for (nb::handle field : fields) {
    names.push_back(nb::cast<std::string>(field[0]));
    buffers.emplace_back(field[1], ("field '" + names.back() + "'").c_str(), "tar");
  }
  std::vector<TarWriter::Field> each;
  for (size_t i = 0; i < names.size(); ++i) each.push_back({names[i], buffers[i].bytes()});
  WithoutGil unlocked;
  writer.write(key, each);
}

nb::dict result_of(const TarSurvey& survey) {
  nb::list damage;
  for (const auto& place : survey.damage) {
    nb::dict one;
    one["record"] = place.record;
    one["byte"] = place.offset;
    one["bytes"] = place.bytes;
    one["why"] = place.why;
    damage.append(one);
  }
  nb::dict fields;
  for (const auto& [name, field] : survey.fields) {
    nb::dict one;
    one["records"] = field.samples;
    one["types"] = nb::make_tuple(0, field.samples, 0, 0);  // bytes
    one["values"] = nb::make_tuple(1, 1);
    one["bytes"] = nb::make_tuple(field.least, field.most);
    fields[name.c_str()] = one;
  }
  nb::dict result;
  result["compressed"] = survey.compression != Compression::kNone;
  result["file_bytes"] = survey.file_bytes;
  result["records"] = survey.samples;
  result["payload_bytes"] = survey.data_bytes;
  result["smallest"] = survey.smallest;
  result["largest"] = survey.largest;
  result["lost_places"] = survey.lost_places;
  result["lost_bytes"] = survey.lost_bytes;
  result["damage"] = damage;
  result["features"] = fields;
  return result;
}

nb::dict survey_of_tar(const std::filesystem::path& path, Progress& progress) {
  TarSurvey found;
  {
    WithoutGil unlocked;
    const Cancellation cancellation([&] { progress.reached(progress.bytes, path); });
    found = survey_tar(posix_files(), path, {}, &progress);
  }
  return result_of(found);
}

}  // namespace

void bind_tar(nb::module_& m) {
  nb::class_<SampleWriter>(m, "TarWriter", "Internal: use penstock.TarWriter.")
      .def(nb::init<const std::filesystem::path&, const std::string&>(),
           nb::call_guard<WithoutGil>())
      .def("write", &write_sample)
      .def("close", &SampleWriter::close, nb::call_guard<WithoutGil>())
      .def("discard", &SampleWriter::discard, nb::call_guard<WithoutGil>())
      .def_prop_ro("samples", &SampleWriter::samples)
      .def_prop_ro("bytes_written", &SampleWriter::bytes);
  m.def("survey_tar", &survey_of_tar);
}

}  // namespace penstock::python
