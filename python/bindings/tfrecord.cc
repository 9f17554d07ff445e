#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "buffer.h"
#include "gil.h"
#include "locked_writer.h"
#include "module.h"
#include "penstock/base/error.h"
#include "penstock/io/example_features.h"
#include "penstock/io/example_writer.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

template <class T>
std::span<const T> values(const Buffer& buffer) {
  return {reinterpret_cast<const T*>(buffer.bytes().data()), buffer.bytes().size() / sizeof(T)};
}

// Items (name, type, values). values: a list of strings for kBytes, otherwise the bytes of float32
// or int64 numbers.
nb::bytes example(nb::list features) {
  ExampleWriter writer;
  for (nb::handle feature : features) {
    const auto name = nb::cast<std::string>(feature[0]);
    const auto type = static_cast<ExampleFeature::Type>(nb::cast<int>(feature[1]));
    if (type == ExampleFeature::Type::kBytes) {
      std::vector<Buffer> strings;
      std::vector<std::span<const std::byte>> views;
      for (nb::handle string : feature[2]) strings.emplace_back(string, "a string of an example");
      for (const Buffer& string : strings) views.push_back(string.bytes());
      writer.bytes_list(name, views);
      continue;
    }
    const Buffer numbers(feature[2], "the numbers of an example");
    if (type == ExampleFeature::Type::kFloat32) {
      writer.float32(name, values<float>(numbers));
    } else {
      writer.int64(name, values<int64_t>(numbers));
    }
  }
  const auto message = writer.finish();
  return nb::bytes(message.data(), message.size());
}

}  // namespace

void bind_tfrecord(nb::module_& m) {
  nb::class_<RecordWriter>(m, "TFRecordWriter", "Internal: use penstock.TFRecordWriter.")
      .def(
          "__init__",
          [](RecordWriter* self, const std::filesystem::path& path,
             const std::string& compression) {
            new (self) RecordWriter(path, compression, "tfrecord");
          },
          nb::call_guard<WithoutGil>())
      .def(
          "write",
          [](RecordWriter& writer, nb::handle record) {
            const Buffer buffer(record, "a record");
            WithoutGil unlocked;
            writer.write([&](TFRecordWriter& file) { file.write(buffer.bytes()); });
          },
          nb::arg("record").none())
      .def("close", &RecordWriter::close, nb::call_guard<WithoutGil>())
      .def("discard", &RecordWriter::discard, nb::call_guard<WithoutGil>())
      .def_prop_ro("records", &RecordWriter::records)
      .def_prop_ro("bytes_written", &RecordWriter::bytes);
  m.def("example", &example);
}

}  // namespace penstock::python
