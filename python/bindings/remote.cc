#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dataset.h"
#include "gil.h"
#include "module.h"
#include "packet_outlet.h"
#include "penstock/base/error.h"
#include "penstock/net/listener.h"
#include "penstock/net/user_folder.h"
#include "penstock/pipeline/engine/plan_engine.h"
#include "penstock/workers/link.h"
#include "penstock/workers/remote_service.h"
#include "python_op.h"
#include "python_worker.h"
#include "remote_connection.h"
#include "routed_worker.h"

namespace nb = nanobind;

namespace penstock::python {

namespace {

using net::Connection;
using net::Listener;

std::span<const std::byte> bytes_of(const nb::bytes& from) {
  return {static_cast<const std::byte*>(from.data()), from.size()};
}

double seconds_of(std::optional<double> timeout) {
  return timeout.value_or(std::numeric_limits<double>::infinity());
}

void send(RemoteConnection& connection, const nb::bytes& head, const nb::bytes& body) {
  const std::span<const std::byte> parts[] = {bytes_of(body)};
  WithoutGil unlocked;
  connection.get().send(bytes_of(head), parts);
}

// The head and the body; None: the other end has closed the connection. Error kTimeout.
std::optional<nb::tuple> receive(RemoteConnection& connection, std::optional<double> timeout) {
  std::optional<net::Received> message;
  std::string body;
  {
    WithoutGil unlocked;
    message = connection.get().receive(seconds_of(timeout));
    if (message) {
      body.resize(message->body_bytes);
      connection.get().receive_body(std::as_writable_bytes(std::span(body)));
    }
  }
  if (!message) return std::nullopt;
  return nb::make_tuple(nb::bytes(message->head.data(), message->head.size()),
                        nb::bytes(body.data(), body.size()));
}

std::unique_ptr<RemoteConnection> connect(const std::string& address, const nb::bytes& secret,
                                          double timeout) {
  net::ConnectOptions options;
  options.secret.assign(secret.c_str(), secret.size());
  options.timeout_s = timeout;
  WithoutGil unlocked;
  return std::make_unique<RemoteConnection>(net::connect(address, options));
}

std::unique_ptr<RemoteConnection> accept(Listener& listener, std::optional<double> timeout) {
  WithoutGil unlocked;
  auto made = listener.accept(seconds_of(timeout));
  return made == nullptr ? nullptr : std::make_unique<RemoteConnection>(std::move(made));
}

// Serves one connection of a worker process for another host, after Python has unpacked the data
// set. `link`: to the process that started this one, for updates of the data set. `loader`: the
// number of the connection's Loader among those of this process. `s`: the settings of that Loader.
void serve_remote_samples(RemoteConnection& connection, RemoteTurn& turn, uint32_t loader, int link,
                          nb::dict s, nb::object source, nb::object collate, nb::object update) {
  SampleSettings samples = sample_settings_of(s);
  samples.rekey_globals = true;
  samples.version = setting<uint64_t>(s, "version");
  RemoteService service(connection.take(),
                        {setting<uint32_t>(s, "places"), setting<uint32_t>(s, "most_rows"), loader},
                        turn);
  PythonWorker python(samples, source.ptr(), collate.ptr(), update.ptr(), service.ring(),
                      {.link = link, .remote = true});
  service.serve(python);
}

// The same for a Dataset.
void serve_remote_chain(RemoteConnection& connection, RemoteTurn& turn, uint32_t loader, nb::dict s,
                        const BuiltPlan& built) {
  RemoteService service(connection.take(),
                        {setting<uint32_t>(s, "places"), built.plan->max_rows(), loader}, turn);
  rekey_globals_for_elements();
  WorkerCounters uncounted{};
  Packets packets(service.ring(), uncounted);
  ChainWorker::Options options{setting<uint64_t>(s, "seed"), setting<uint32_t>(s, "retries"),
                               setting<std::string>(s, "on_error") == "skip"};
  WithoutGil unlocked;
  std::unique_ptr<TicketRunner> chain = worker_of_plan(
      built.plan, options, service.ring(), [&] { return std::make_unique<PacketOutlet>(packets); });
  service.serve(*chain);
}

// The next message of a worker process: (kind, bytes); None: the process has ended.
std::optional<nb::tuple> link_next(int link) {
  LinkHeader header;
  os::Fd descriptor;
  std::string bytes;
  bool there;
  {
    WithoutGil unlocked;
    there = link_receive(link, header, descriptor);
    if (there) {
      bytes.resize(std::min<uint64_t>(header.bytes, 16 << 20));
      there = link_read(link, std::as_writable_bytes(std::span(bytes)));
    }
  }
  if (!there) return std::nullopt;
  const char* kind = header.message == LinkMessage::kAddress  ? "address"
                     : header.message == LinkMessage::kFailed ? "failed"
                                                              : "other";
  return nb::make_tuple(kind, nb::bytes(bytes.data(), bytes.size()));
}

}  // namespace

void bind_remote(nb::module_& m) {
  nb::class_<RemoteConnection>(m, "RemoteConnection",
                               "One end of a connection to workers on another host. Internal.")
      .def("send", &send, nb::arg("head"), nb::arg("body") = nb::bytes("", 0))
      .def("receive", &receive, nb::arg("timeout").none() = nb::none())
      .def_prop_ro("peer", [](const RemoteConnection& c) { return c.get().peer(); })
      .def("close", [](RemoteConnection& c) { c.get().close(); });
  nb::class_<RemoteLine>(
      m, "RemoteLine", "A connection to a remote worker, for one ticket after the other. Internal.")
      .def("cut", [](RemoteLine& line) { line.worker->cut(); });
  nb::class_<Listener>(m, "RemoteListener", "Accepts connections of Loaders. Internal.")
      .def(
          "__init__",
          [](Listener* made, const std::string& address, const nb::bytes& secret) {
            net::ListenOptions options;
            options.secret.assign(secret.c_str(), secret.size());
            new (made) Listener(address, options);
          },
          nb::arg("address"), nb::arg("secret"))
      .def_prop_ro("address", &Listener::address)
      .def_prop_ro("closed", &Listener::closed)
      .def("accept", &accept, nb::arg("timeout").none() = nb::none())
      .def("close", &Listener::close);
  nb::class_<RemoteTurn>(m, "RemoteTurn", "One ticket at a time in a worker process. Internal.")
      .def(nb::init<int>(), nb::arg("status"));
  m.def("remote_connect", &connect, nb::arg("address"), nb::arg("secret"), nb::arg("timeout"));
  m.def("serve_remote_samples", &serve_remote_samples, nb::arg("connection"), nb::arg("turn"),
        nb::arg("loader"), nb::arg("link"), nb::arg("settings"), nb::arg("source"),
        nb::arg("collate").none(), nb::arg("update"));
  m.def("serve_remote_chain", &serve_remote_chain, nb::arg("connection"), nb::arg("turn"),
        nb::arg("loader"), nb::arg("settings"), nb::arg("plan"));
  m.def("link_next", &link_next);
  m.def("link_send_update", [](int link, uint64_t version, int descriptor) {
    WithoutGil unlocked;
    return link_send(link, {LinkMessage::kUpdate, 0, version, 0}, {}, descriptor);
  });
  m.def("remove_dead_sockets", [] {
    WithoutGil unlocked;
    net::remove_dead_sockets();
  });
  m.attr("REMOTE_STATUS_BYTES") = sizeof(RemoteStatus);
  m.attr("UNKNOWN_CALL") = Call{0, kUnknownCall}.word();
  m.def("report_address", [](int link, const std::string& address) {
    link_send(link, {LinkMessage::kAddress, 0, 0, address.size()},
              std::as_bytes(std::span(address)));
  });
}

}  // namespace penstock::python
