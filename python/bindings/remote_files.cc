#include "penstock/io/remote_files.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gil.h"
#include "module.h"
#include "penstock/base/cancellation.h"
#include "penstock/base/error.h"
#include "penstock/io/file_pool.h"
#include "python_op.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

// penstock/base/remote.py does the work, in threads of its own. Engine threads take the GIL here to
// ask for a file and to look whether it came, never while they hold a lock that a thread with the
// GIL may want.
class PythonRemoteFiles final : public RemoteFiles {
 public:
  std::vector<std::string> glob(const std::string& url) override {
    return answer<std::vector<std::string>>([&] { return ask("glob", url); },
                                            [](nb::handle found) {
                                              std::vector<std::string> urls;
                                              for (nb::handle each : found) {
                                                urls.push_back(bytes_of(each));
                                              }
                                              return std::optional(std::move(urls));
                                            });
  }

  std::vector<FileSystem::Entry> list(const std::string& folder) override {
    using Kind = FileSystem::Kind;
    return answer<std::vector<FileSystem::Entry>>(
        [&] { return ask("listed", folder); },
        [](nb::handle found) {
          std::vector<FileSystem::Entry> all;
          for (nb::handle each : found) {
            all.push_back({bytes_of(nb::object(each[0])),
                           nb::cast<bool>(each[1]) ? Kind::kFolder : Kind::kFile});
          }
          return std::optional(std::move(all));
        });
  }

  About find(const std::string& url) override {
    return answer<About>([&] { return ask("find", url); },
                         [](nb::handle found) {
                           const auto [bytes, device, inode] =
                               nb::cast<std::tuple<uint64_t, uint64_t, uint64_t>>(found);
                           return std::optional(About{bytes, {device, inode}});
                         });
  }

  std::vector<std::byte> front(const std::string& url, const About& about,
                               uint64_t bytes) override {
    return answer<std::vector<std::byte>>(
        [&] { return ask("front", url, bytes, pair_of(about.identity)); },
        [](nb::handle found) {
          std::vector<std::byte> front;
          if (!found.is_none()) {
            const auto data = nb::cast<nb::bytes>(found);
            front.resize(data.size());
            std::memcpy(front.data(), data.c_str(), data.size());
          }
          return std::optional(std::move(front));
        });
  }

  os::Fd fetch(const std::string& url, const File::Identity& identity) override {
    return answer<os::Fd>([&] { return ask("fetch", url, pair_of(identity)); },
                          [](nb::handle found) -> std::optional<os::Fd> {
                            if (found.is_none()) return std::nullopt;  // removed meanwhile
                            return os::Fd(nb::cast<int>(found));
                          });
  }

  void announce(const std::vector<std::string>& urls) noexcept override {
    const WithGil locked;
    try {
      nb::list all;
      for (const std::string& url : urls) all.append(text(url));
      module().attr("ask")("announce", all);
    } catch (const std::exception&) {  // the file's reader gets the error
    }
  }

 private:
  static constexpr double kPollSeconds = 0.1;

  static nb::module_ module() { return nb::module_::import_("penstock.base.remote"); }
  static std::pair<uint64_t, uint64_t> pair_of(const File::Identity& identity) {
    return {identity.device, identity.inode};
  }
  // A URL may have any bytes, as a file name may.
  static nb::object text(const std::string& url) {
    return nb::steal(
        PyUnicode_DecodeFSDefaultAndSize(url.data(), static_cast<Py_ssize_t>(url.size())));
  }
  static std::string bytes_of(nb::handle url) {
    const auto bytes = nb::steal<nb::bytes>(PyUnicode_EncodeFSDefault(url.ptr()));
    if (!bytes.is_valid()) throw nb::python_error();
    return {bytes.c_str(), bytes.size()};
  }
  template <class... Arguments>
  static nb::object ask(const char* what, const std::string& url, const Arguments&... arguments) {
    return module().attr("ask")(what, text(url), arguments...);
  }

  [[noreturn]] static void raise(const std::string& kind, std::string text) {
    for (Code code : {Code::kNotFound, Code::kInvalidArgument, Code::kDataLoss}) {
      if (kind == name_of(code)) throw Error(code, "open", std::move(text));
    }
    throw Error(Code::kSystem, "open", std::move(text));
  }

  // Waits for a job of base/remote.py. `take` returns nullopt: ask again.
  template <class Result, class Ask, class Take>
  static Result answer(const Ask& ask, const Take& take) {
    struct Job {
      PyObject* object = nullptr;
      ~Job() {
        const WithGil locked;
        Py_CLEAR(object);
      }
    };
    for (;;) {
      Job job;
      {
        const WithGil locked;
        job.object = ask().release().ptr();
      }
      for (;;) {
        Cancellation::check();
        const WithGil locked;
        nb::object result;
        try {
          result = nb::borrow(job.object).attr("poll")(kPollSeconds);
        } catch (nb::python_error& interrupt) {  // Ctrl-C, in the main thread
          interrupt.restore();
          throw Raised::take();
        }
        if (result.is_none()) continue;
        const auto kind = nb::cast<std::string>(result[0]);
        const nb::object value = result[1];
        if (!kind.empty()) raise(kind, bytes_of(value));
        std::optional<Result> taken = take(value);
        if (taken) return std::move(*taken);
        break;
      }
    }
  }
};

}  // namespace

void bind_remote_files(nb::module_& m) {
  set_remote_files(std::make_shared<PythonRemoteFiles>());
  // So that the copy of a URL's file can be removed.
  m.def("close_unused_files",
        [](const std::filesystem::path& path) { OpenFiles::of_process()->close_unused(path); });
}

}  // namespace penstock::python
