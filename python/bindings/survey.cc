#include "penstock/io/survey.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "gil.h"
#include "locked_writer.h"
#include "module.h"
#include "penstock/base/cancellation.h"
#include "penstock/io/file_listing.h"
#include "penstock/io/glob.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

nb::object text(std::string_view bytes) {
  return nb::steal(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()),
                                        "backslashreplace"));
}

nb::dict features_of(const ExampleSurvey& survey) {
  nb::dict all;
  for (const auto& [name, feature] : survey.features()) {
    nb::dict one;
    one["records"] = feature.records;
    one["types"] = nb::make_tuple(feature.of_type[0], feature.of_type[1], feature.of_type[2],
                                  feature.of_type[3]);
    one["values"] = nb::make_tuple(feature.least, feature.most);
    one["bytes"] = nb::make_tuple(feature.least_bytes, feature.most_bytes);
    all[text(name)] = one;
  }
  return all;
}

nb::dict result_of(const FileSurvey& survey, nb::dict features) {
  nb::list damage;
  for (const auto& place : survey.damage) {
    nb::dict one;
    one["record"] = place.record;
    one["byte"] = place.offset;
    one["bytes"] = place.bytes;
    one["why"] = place.why;
    damage.append(one);
  }
  nb::dict result;
  result["compressed"] = survey.compression != Compression::kNone;
  result["file_bytes"] = survey.file_bytes;
  result["records"] = survey.records;
  result["payload_bytes"] = survey.payload_bytes;
  result["smallest"] = survey.smallest;
  result["largest"] = survey.largest;
  result["lost_places"] = survey.lost_places;
  result["lost_bytes"] = survey.lost_bytes;
  result["damage"] = damage;
  result["features"] = features;
  return result;
}

// Reads a file; its sound records go to the `writers` in turn, beginning with number `next`.
nb::dict survey_tfrecord_file(const std::filesystem::path& path, Progress& progress, bool features,
                              std::vector<RecordWriter*> writers, size_t next) {
  FileSurvey found;
  ExampleSurvey examples;
  {
    WithoutGil unlocked;
    const Cancellation cancellation([&] { progress.reached(progress.bytes, path); });
    found = survey_tfrecord(
        posix_files(), path,
        [&](std::span<const std::byte> record) {
          if (features) examples.add(record);
          if (!writers.empty())
            writers[next++ % writers.size()]->write(
                [&](TFRecordWriter& file) { file.write(record); });
        },
        &progress);
  }
  nb::dict result = result_of(found, features_of(examples));
  result["examples"] = examples.examples();
  result["sequences"] = examples.sequences();
  result["others"] = examples.others();
  return result;
}

nb::dict survey_tar_file(const std::filesystem::path& path, Progress& progress) {
  TarSurvey found;
  {
    WithoutGil unlocked;
    const Cancellation cancellation([&] { progress.reached(progress.bytes, path); });
    found = survey_tar(posix_files(), path, {}, &progress);
  }
  nb::dict fields;
  for (const auto& [name, field] : found.fields) {
    nb::dict one;
    one["records"] = field.samples;
    one["types"] = nb::make_tuple(0, field.samples, 0, 0);  // bytes
    one["values"] = nb::make_tuple(1, 1);
    one["bytes"] = nb::make_tuple(field.least, field.most);
    fields[name.c_str()] = one;
  }
  return result_of(found, fields);
}

// As str, because a pathlib.Path is not a URL.
nb::list file_names(const std::vector<std::string>& found) {
  nb::list names;
  for (const std::string& name : found) {
    names.append(nb::steal(
        PyUnicode_DecodeFSDefaultAndSize(name.data(), static_cast<Py_ssize_t>(name.size()))));
  }
  return names;
}

}  // namespace

void bind_survey(nb::module_& m) {
  nb::class_<Progress>(m, "Progress", "How far a pass over a file is. Internal.")
      .def(nb::init<>())
      .def_prop_ro("bytes", [](const Progress& p) { return p.bytes.load(); })
      .def("stop", [](Progress& p) { p.stop = true; });
  m.def("survey_tfrecord", &survey_tfrecord_file);
  m.def("survey_tar", &survey_tar_file);
  m.def("glob_files", [](const std::vector<std::filesystem::path>& patterns) {
    std::vector<std::string> found;
    {
      WithoutGil unlocked;
      found = glob(*posix_files(), std::vector<std::string>(patterns.begin(), patterns.end()));
    }
    return file_names(found);
  });
  m.def("image_classes", [](const std::filesystem::path& root, bool follow_links) {
    std::vector<std::string> found;
    {
      WithoutGil unlocked;
      found = image_classes(*posix_files(), root.string(), follow_links);
    }
    return file_names(found);
  });
}

}  // namespace penstock::python
