#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>

#include <filesystem>
#include <new>
#include <string>

#include "buffer.h"
#include "gil.h"
#include "locked_writer.h"
#include "module.h"
#include "penstock/io/compression.h"

namespace nb = nanobind;

namespace penstock::python {
void bind_file_writer(nb::module_& m) {
  using FileWriter = LockedWriter<BufferedSink>;
  nb::class_<FileWriter>(m, "FileWriter",
                         "A file that appears under its name when it is closed. Internal.")
      .def(
          "__init__",
          [](FileWriter* self, const std::filesystem::path& path, const std::string& compression) {
            new (self) FileWriter(path, compression, "write");
          },
          nb::call_guard<WithoutGil>())
      .def("write",
           [](FileWriter& writer, nb::handle bytes) {
             const Buffer buffer(bytes, "what is written", "write");
             WithoutGil unlocked;
             writer.write([&](BufferedSink& sink) { sink.append(buffer.bytes()); });
             return buffer.bytes().size();
           })
      .def("close", &FileWriter::close, nb::call_guard<WithoutGil>())
      .def("discard", &FileWriter::discard, nb::call_guard<WithoutGil>());
}

}  // namespace penstock::python
