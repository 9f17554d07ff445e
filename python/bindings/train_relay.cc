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
#include "penstock/train/relay.h"

namespace nb = nanobind;

namespace penstock::python {

using train::Model;
using train::RelayReceiver;
using train::RelaySender;

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
            net::ConnectOptions options;
            options.secret = secret;
            options.encrypt = encrypt;
            options.while_waiting = look_for_signals;
            new (made) RelaySender(std::move(model), std::move(address), std::move(options));
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
            net::ListenOptions options;
            options.secret = secret;
            options.encrypt = encrypt;
            options.while_waiting = look_for_signals;
            new (made) RelayReceiver(std::move(name), address, std::move(options));
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
}

}  // namespace penstock::python
