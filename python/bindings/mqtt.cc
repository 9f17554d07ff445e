#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gil.h"
#include "module.h"
#include "penstock/online/mqtt_client.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

using online::MessageSource;
using online::MqttClient;
using online::MqttOptions;

std::shared_ptr<MqttClient> make_client(std::string host, uint16_t port,
                                        std::vector<std::string> topics, uint8_t qos, bool version5,
                                        std::string client_id, bool clean_start,
                                        uint32_t session_expiry_s, uint16_t keep_alive_s,
                                        std::string user, std::string password, bool tls,
                                        std::string ca, std::string certificate, std::string key,
                                        double connect_timeout_s) {
  MqttOptions options;
  options.host = std::move(host);
  options.port = port;
  options.topics = std::move(topics);
  options.qos = qos;
  options.version = version5 ? online::mqtt::Version::k5 : online::mqtt::Version::k311;
  options.client_id = std::move(client_id);
  options.clean_start = clean_start;
  options.session_expiry_s = session_expiry_s;
  options.keep_alive_s = keep_alive_s;
  options.user = std::move(user);
  options.password = std::move(password);
  if (tls) {
    options.tls = net::TlsClientOptions{std::move(ca), std::move(certificate), std::move(key)};
  }
  options.connect_timeout_s = connect_timeout_s;
  options.while_waiting = look_for_signals;
  return std::make_shared<MqttClient>(std::move(options));
}

}  // namespace

void bind_mqtt(nb::module_& m) {
  using Unlocked = nb::call_guard<WithoutGil>;
  nb::class_<MqttClient, MessageSource>(m, "MqttClient", "Internal: use penstock.train.mqtt.")
      .def_static("make", &make_client, nb::arg("host"), nb::arg("port"), nb::arg("topics"),
                  nb::arg("qos"), nb::arg("version5"), nb::arg("client_id"), nb::arg("clean_start"),
                  nb::arg("session_expiry_s"), nb::arg("keep_alive_s"), nb::arg("user"),
                  nb::arg("password"), nb::arg("tls"), nb::arg("ca"), nb::arg("certificate"),
                  nb::arg("key"), nb::arg("connect_timeout_s"), Unlocked())
      .def("start_publishing", &MqttClient::start_publishing, Unlocked())
      .def("flush", &MqttClient::flush, nb::arg("seconds"), Unlocked())
      .def("stop", &MqttClient::stop, Unlocked());
}

}  // namespace penstock::python
