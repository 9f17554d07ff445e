#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>

#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "buffer.h"
#include "gil.h"
#include "module.h"
#include "penstock/base/error.h"
#include "penstock/io/buffered_sink.h"
#include "penstock/io/posix_files.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

// A BufferedSink that any thread may use, one after the other. REQUIRED: called without the GIL.
class FileWriter {
 public:
  FileWriter(const std::filesystem::path& path, const std::string& compression)
      : files_(posix_files()),
        sink_(std::in_place, *files_, path, compression_from_name(compression, "write")) {}

  void write(std::span<const std::byte> bytes) {
    std::lock_guard lock(mutex_);
    if (!sink_) throw Error(Code::kClosed, "write", "the file was closed");
    sink_->append(bytes);
  }
  void close() {
    std::lock_guard lock(mutex_);
    if (sink_) sink_->close();
    sink_.reset();
  }
  void discard() {
    std::lock_guard lock(mutex_);
    sink_.reset();
  }

 private:
  std::mutex mutex_;
  const std::shared_ptr<FileSystem> files_;
  std::optional<BufferedSink> sink_;  // nullopt: closed
};

}  // namespace

void bind_file_writer(nb::module_& m) {
  nb::class_<FileWriter>(m, "FileWriter",
                         "A file that appears under its name when it is closed. Internal.")
      .def(nb::init<const std::filesystem::path&, const std::string&>(),
           nb::call_guard<WithoutGil>())
      .def("write",
           [](FileWriter& writer, nb::handle bytes) {
             const Buffer buffer(bytes, "what is written", "write");
             WithoutGil unlocked;
             writer.write(buffer.bytes());
             return buffer.bytes().size();
           })
      .def("close", &FileWriter::close, nb::call_guard<WithoutGil>())
      .def("discard", &FileWriter::discard, nb::call_guard<WithoutGil>());
}

}  // namespace penstock::python
