#pragma once

#include <penstock/online/mqtt_client.h>

#include <array>
#include <chrono>
#include <span>
#include <stop_token>
#include <string>
#include <thread>

#include "broker.h"

// Publishes x of the Lorenz system, as text, 1000 times a second. It jumps between two sides of 0,
// at times that are hard to tell long before.
inline void run_sensor(const std::stop_token& stop, const Broker& broker, const char* topic) {
  penstock::online::MqttClient client({.host = "127.0.0.1", .port = broker.port});
  client.start_publishing();
  std::array<double, 3> p = {1, 1, 20};
  auto due = std::chrono::steady_clock::now();
  while (!stop.stop_requested()) {
    for (int i = 0; i < 10; ++i) {
      const auto [x, y, z] = p;
      constexpr double kStep = 0.005;
      p = {x + kStep * 10 * (y - x), y + kStep * (x * (28 - z) - y),
           z + kStep * (x * y - z * 8 / 3)};
    }
    const std::string value = std::to_string(p[0] / 20);
    client.publish(topic, std::as_bytes(std::span(value)), 1);
    std::this_thread::sleep_until(due += std::chrono::milliseconds(1));
  }
}
