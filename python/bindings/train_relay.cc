#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "gil.h"
#include "module.h"
#include "penstock/train/channel_relay.h"
#include "penstock/train/relay.h"

namespace nb = nanobind;

namespace penstock::python {

using train::ItemReceiver;
using train::ItemSender;
using train::Model;
using train::RelayReceiver;
using train::RelaySender;

namespace {

template <class Options>
Options link_options(const std::string& secret, std::optional<bool> encrypt) {
  Options options;
  options.secret = secret;
  options.encrypt = encrypt;
  options.while_waiting = look_for_signals;
  return options;
}

nb::dict counts_of(const train::ProducerCounts& counts) {
  nb::dict all;
  all["put"] = counts.put;
  all["dropped_oldest"] = counts.dropped;
  all["dropped_newest"] = counts.refused;
  all["queued"] = counts.queued;
  return all;
}

}  // namespace

void bind_train_relay(nb::module_& m) {
  using Unlocked = nb::call_guard<WithoutGil>;
  nb::class_<RelaySender>(m, "RelaySender", "Internal: an end of penstock.ray.relay.")
      .def(
          "__init__",
          [](RelaySender* made, const std::string& name, double attach_s, std::string address,
             const std::string& secret, std::optional<bool> encrypt) {
            auto model = std::make_shared<Model>(
                name, train::ModelOptions{.timeout_ns = static_cast<int64_t>(attach_s * 1e9),
                                          .while_waiting = look_for_signals});
            new (made) RelaySender(std::move(model), std::move(address),
                                   link_options<net::ConnectOptions>(secret, encrypt));
          },
          nb::arg("name"), nb::arg("attach_seconds"), nb::arg("address"), nb::arg("secret"),
          nb::arg("encrypt").none(), Unlocked())
      .def(
          "send",
          [](RelaySender& self, double timeout_s) {
            using Sent = std::tuple<uint64_t, uint64_t, uint64_t, double>;
            const auto sent = self.send(timeout_s);
            return sent ? std::optional(
                              Sent{sent->version, sent->skipped, sent->bytes, sent->seconds})
                        : std::nullopt;
          },
          nb::arg("timeout"), Unlocked())
      .def_prop_ro("newest", [](RelaySender& self) {
        WithoutGil unlocked;
        return self.newest();
      });

  nb::class_<RelayReceiver>(m, "RelayReceiver", "Internal: the other end of penstock.ray.relay.")
      .def(
          "__init__",
          [](RelayReceiver* made, std::string name, const std::string& address,
             const std::string& secret, std::optional<bool> encrypt) {
            new (made) RelayReceiver(std::move(name), address,
                                     link_options<net::ListenOptions>(secret, encrypt));
          },
          nb::arg("name"), nb::arg("address"), nb::arg("secret"), nb::arg("encrypt").none(),
          Unlocked())
      .def_prop_ro("address", &RelayReceiver::address)
      .def_prop_ro("readers", &RelayReceiver::readers)
      .def(
          "receive",
          [](RelayReceiver& self, double timeout_s) {
            const auto received = self.receive(timeout_s);
            return received ? std::optional(std::pair(received->version, received->published))
                            : std::nullopt;
          },
          nb::arg("timeout"), Unlocked());

  nb::class_<ItemSender>(m, "ItemSender", "Internal: an end of penstock.ray.relay_channel.")
      .def(
          "__init__",
          [](ItemSender* made, std::string name, const std::string& address,
             const std::string& secret, std::optional<bool> encrypt) {
            new (made) ItemSender(std::move(name), address,
                                  link_options<net::ListenOptions>(secret, encrypt));
          },
          nb::arg("name"), nb::arg("address"), nb::arg("secret"), nb::arg("encrypt").none(),
          Unlocked())
      .def_prop_ro("address", &ItemSender::address)
      .def("answer", &ItemSender::answer, nb::arg("timeout"), Unlocked());

  nb::class_<ItemReceiver>(m, "ItemReceiver",
                           "Internal: the other end of penstock.ray.relay_channel.")
      .def(
          "__init__",
          [](ItemReceiver* made, std::string name, std::string address, const std::string& secret,
             std::optional<bool> encrypt) {
            new (made) ItemReceiver(std::move(name), std::move(address),
                                    link_options<net::ConnectOptions>(secret, encrypt));
          },
          nb::arg("name"), nb::arg("address"), nb::arg("secret"), nb::arg("encrypt").none(),
          Unlocked())
      .def(
          "take",
          [](ItemReceiver& self, double timeout_s) {
            using Taken = std::tuple<uint64_t, uint64_t, double>;
            const auto taken = self.take(timeout_s);
            return taken ? std::optional(Taken{taken->items, taken->bytes, taken->seconds})
                         : std::nullopt;
          },
          nb::arg("timeout"), Unlocked())
      .def_prop_ro("there", [](const ItemReceiver& self) { return counts_of(self.there()); });
}

}  // namespace penstock::python
