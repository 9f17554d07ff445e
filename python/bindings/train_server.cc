#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "gil.h"
#include "gradient_parts.h"
#include "module.h"
#include "penstock/base/error.h"
#include "penstock/train/server/parameter_client.h"
#include "penstock/train/server/parameter_server.h"
#include "penstock/train/server/shard_link.h"
#include "penstock/train/server/shard_resolver.h"
#include "penstock/train/server/shard_supervisor.h"
#include "train.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

using train::NonFinite;
using train::Optimizer;
using train::ParameterClient;
using train::Parameters;
using train::ParameterServer;
using train::ServerMode;
using train::ShardProcesses;
using train::Slab;

// Both kinds of servers take the same arguments.
template <class Server>
void make_server(Server* made, const Slab& parameters, const Optimizer& optimizer, size_t shards,
                 const ServerMode& mode, std::vector<std::string> listen, std::string secret,
                 std::optional<bool> encrypt, const std::filesystem::path& snapshots,
                 double snapshot_seconds) {
  new (made) Server(Parameters(parameters), optimizer,
                    {.shards = shards,
                     .mode = mode,
                     .listen = std::move(listen),
                     .secret = std::move(secret),
                     .encrypt = encrypt,
                     .snapshots = snapshots,
                     .snapshot_s = snapshot_seconds});
}

template <class Gradients>
nb::tuple pushed(ParameterClient& client, const Gradients& gradients, const Slab* into) {
  ParameterClient::Pushed pushed;
  {
    WithoutGil unlocked;
    pushed = into == nullptr ? client.push(gradients) : client.push_pull(gradients, *into);
  }
  return nb::make_tuple(pushed.applied, pushed.lapsed, nb::cast(pushed.versions));
}

template <class Server>
void bind_making(nb::class_<Server>& server) {
  server
      .def("__init__", &make_server<Server>, nb::arg("parameters"), nb::arg("optimizer"),
           nb::arg("shards"), nb::arg("mode"), nb::arg("listen"), nb::arg("secret"),
           nb::arg("encrypt").none(), nb::arg("snapshots"), nb::arg("snapshot_seconds"),
           nb::call_guard<WithoutGil>())
      .def_prop_ro("damaged_snapshots", &Server::damaged_snapshots)
      .def_prop_ro("saving_failed", &Server::saving_failed);
}

// A resolver whose locate() is Python's: locate(shard, timeout) returns the address and the epoch
// of a shard, or a text with the reason why it is not known now.
class PythonResolver final : public train::ShardResolver {
 public:
  // With the GIL.
  explicit PythonResolver(nb::object locate, size_t shards)
      : locate_(std::move(locate)), shards_(shards) {}
  ~PythonResolver() override {
    const WithGil locked;
    locate_.reset();
  }
  PythonResolver(const PythonResolver&) = delete;
  PythonResolver& operator=(const PythonResolver&) = delete;

  size_t shards() const override { return shards_; }
  train::ShardLocation locate(size_t shard, double timeout_s) override {
    const WithGil locked;
    StayWhenEnded stay;
    const nb::object answer = locate_(shard, timeout_s);
    stay.returned();
    if (nb::isinstance<nb::str>(answer)) {
      throw Error(Code::kClosed, "connect", nb::cast<std::string>(answer));
    }
    return {nb::cast<std::string>(answer[0]), nb::cast<uint64_t>(answer[1])};
  }

 private:
  nb::object locate_;
  const size_t shards_;
};

}  // namespace

void bind_train_server(nb::module_& m) {
  using Unlocked = nb::call_guard<WithoutGil>;
  nb::class_<ServerMode>(m, "ServerMode", "Internal: the mode of a penstock.train.ParameterServer.")
      .def(
          "__init__",
          [](ServerMode* made, std::optional<uint32_t> staleness, double lease, uint32_t workers,
             double compensation, int non_finite) {
            new (made) ServerMode{staleness, lease, workers, compensation,
                                  static_cast<NonFinite>(non_finite)};
          },
          nb::arg("staleness").none(), nb::arg("lease"), nb::arg("workers"),
          nb::arg("compensation"), nb::arg("non_finite"));

  nb::class_<ParameterServer> server(m, "ParameterServer",
                                     "Internal: use penstock.train.ParameterServer.");
  bind_making(server);
  server.def_prop_ro("addresses", &ParameterServer::addresses)
      .def("read", &ParameterServer::read, nb::arg("into"), Unlocked())
      .def("stats", &ParameterServer::stats, Unlocked())
      .def("close", &ParameterServer::close, Unlocked());

  nb::class_<ShardProcesses> processes(m, "ShardProcesses",
                                       "Internal: use penstock.train.ParameterServer.");
  bind_making(processes);
  processes.def_prop_ro("listen", &ShardProcesses::listen)
      .def("descriptors", &ShardProcesses::descriptors)
      .def("text", &ShardProcesses::text, nb::arg("addresses"))
      .def("read", &ShardProcesses::read, nb::arg("into"), Unlocked())
      .def_prop_ro("lock", &ShardProcesses::lock)
      .def("start_saving", &ShardProcesses::start_saving, Unlocked())
      .def("end_saving", &ShardProcesses::end_saving, Unlocked())
      .def(
          "crash_at",
          [](const ShardProcesses& self, size_t shard, int place) {
            self.crash_at(shard, static_cast<train::CrashPoint>(place));
          },
          nb::arg("shard"), nb::arg("place"));
  m.def("supervise_shards", &train::supervise_shards, nb::arg("text"), nb::arg("descriptors"),
        nb::arg("control"), nb::arg("lock"), Unlocked());

  using train::FixedLocations;
  using train::ShardResolver;
  nb::class_<ShardResolver>(m, "ShardResolver", "Internal: where the shards of a server are.")
      .def_static(
          "fixed",
          [](std::vector<std::string> addresses) -> std::shared_ptr<ShardResolver> {
            return std::make_shared<FixedLocations>(std::move(addresses));
          },
          nb::arg("addresses"))
      .def_static(
          "asking",
          [](nb::object locate, size_t shards) -> std::shared_ptr<ShardResolver> {
            return std::make_shared<PythonResolver>(std::move(locate), shards);
          },
          nb::arg("locate"), nb::arg("shards"));

  nb::class_<ParameterClient>(m, "ParameterClient", "Internal: use penstock.train.connect.")
      .def(
          "__init__",
          [](ParameterClient* made, std::shared_ptr<ShardResolver> resolver, std::string name,
             uint64_t worker_id, std::string secret, std::optional<bool> encrypt, double retry,
             int encoding, double top_k) {
            const WithoutGil unlocked;
            new (made) ParameterClient(std::move(resolver),
                                       {.name = std::move(name),
                                        .worker_id = worker_id,
                                        .secret = std::move(secret),
                                        .encrypt = encrypt,
                                        .retry_s = retry,
                                        .encoding = static_cast<train::Encoding>(encoding),
                                        .top_k = top_k,
                                        .while_waiting = look_for_signals});
          },
          nb::arg("resolver"), nb::arg("name"), nb::arg("worker_id"), nb::arg("secret"),
          nb::arg("encrypt").none(), nb::arg("retry"), nb::arg("encoding"), nb::arg("top_k"))
      .def(
          "slab",
          [](const ParameterClient& client, bool shared) {
            return Slab::make(client.layout(), shared ? Slab::Kind::kShared : Slab::Kind::kPrivate);
          },
          nb::arg("shared"), Unlocked())
      .def("pull", &ParameterClient::pull, nb::arg("into"), Unlocked())
      .def(
          "push",
          [](ParameterClient& client, const Slab& gradients, const Slab* into) {
            return pushed(client, gradients, into);
          },
          nb::arg("gradients"), nb::arg("into").none() = nb::none(),
          nb::sig("def push(self, gradients: Slab, into: Slab | None = None) -> tuple[bool, bool, "
                  "list[int]]"))
      .def(
          "push_parts",
          [](ParameterClient& client, const nb::list& parts, const Slab* into) {
            const PartsOfList given(parts);
            return pushed(client, given.parts(), into);
          },
          nb::arg("parts"), nb::arg("into").none() = nb::none(),
          nb::sig("def push_parts(self, parts: list, into: Slab | None = None) -> tuple[bool, "
                  "bool, list[int]]"))
      .def("stats", &ParameterClient::stats, Unlocked())
      .def("beat", &ParameterClient::beat, Unlocked())
      .def_prop_ro("lease", &ParameterClient::lease)
      .def("close", &ParameterClient::close, Unlocked())
      .def_prop_ro("sequence", &ParameterClient::sequence)
      .def_prop_ro("name", &ParameterClient::name)
      .def_prop_ro("shards", &ParameterClient::shards)
      .def_prop_ro("local", &ParameterClient::local);

  m.def(
      "shard_stats",
      [](const std::string& address, const std::string& secret, std::optional<bool> encrypt,
         double timeout) {
        return train::shard_stats(address, secret, encrypt, timeout, look_for_signals);
      },
      nb::arg("address"), nb::arg("secret"), nb::arg("encrypt").none(), nb::arg("timeout"),
      Unlocked(), "Internal: the statistics of a shard, as JSON.");
}

}  // namespace penstock::python
