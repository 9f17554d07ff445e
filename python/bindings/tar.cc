#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>

#include <filesystem>
#include <new>
#include <string>
#include <vector>

#include "buffer.h"
#include "gil.h"
#include "locked_writer.h"
#include "module.h"
#include "penstock/io/tar_writer.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

using SampleWriter = LockedWriter<TarWriter>;

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
  writer.write([&](TarWriter& tar) { tar.write(key, each); });
}

}  // namespace

void bind_tar(nb::module_& m) {
  nb::class_<SampleWriter>(m, "TarWriter", "Internal: use penstock.TarWriter.")
      .def(
          "__init__",
          [](SampleWriter* self, const std::filesystem::path& path,
             const std::string& compression) { new (self) SampleWriter(path, compression, "tar"); },
          nb::call_guard<WithoutGil>())
      .def("write", &write_sample)
      .def("close", &SampleWriter::close, nb::call_guard<WithoutGil>())
      .def("discard", &SampleWriter::discard, nb::call_guard<WithoutGil>())
      .def_prop_ro("samples", &SampleWriter::records)
      .def_prop_ro("bytes_written", &SampleWriter::bytes);
}

}  // namespace penstock::python
