// Sends and receives messages by libmosquitto, at the limit of what a client can do.
//   send PORT QOS RATE COUNT    publishes COUNT messages, RATE a second (0: as fast as accepted)
//   receive PORT QOS COUNT      prints "ready"; then seconds, the messages that came, ages p50, p99
// A message: its number (uint64), CLOCK_MONOTONIC in ns when it was sent (int64), 64 floats.
#include <mosquitto.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace {

struct Numbers {
  uint64_t number;
  int64_t sent_ns;
  float values[64];
};

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::atomic<long> accepted{0};

int send(mosquitto* client, int qos, double rate, long count) {
  mosquitto_publish_callback_set(client, [](mosquitto*, void*, int) { ++accepted; });
  mosquitto_max_inflight_messages_set(client, 1000);
  mosquitto_loop_start(client);
  const int64_t began = now_ns();
  const long most = rate > 0 ? count : (qos > 0 ? 1000 : 256);  // that are not accepted yet
  Numbers message{};
  for (long sent = 0; sent < count;) {
    const double seconds = static_cast<double>(now_ns() - began) * 1e-9;
    const long due = rate > 0 ? std::min(count, static_cast<long>(seconds * rate)) : count;
    for (; sent < due && sent - accepted < most; ++sent) {
      for (int i = 0; i < 64; ++i) message.values[i] = static_cast<float>((sent + i) % 100) / 100;
      message.number = static_cast<uint64_t>(sent);
      message.sent_ns = now_ns();
      if (mosquitto_publish(client, nullptr, "x", sizeof(message), &message, qos, false) != 0) {
        return 1;
      }
    }
    usleep(rate > 0 ? 500 : 50);
  }
  while (accepted < count) usleep(1000);
  mosquitto_disconnect(client);
  mosquitto_loop_stop(client, false);
  return 0;
}

struct Received {
  std::vector<double> ages_ms;
  int64_t first_ns = 0, last_ns = 0;
};

int receive(mosquitto* client, int qos, size_t count) {
  Received received;
  mosquitto_user_data_set(client, &received);
  mosquitto_message_callback_set(
      client, [](mosquitto*, void* to, const mosquitto_message* message) {
        auto& received = *static_cast<Received*>(to);
        Numbers numbers;
        std::memcpy(&numbers, message->payload, sizeof(numbers));
        received.last_ns = now_ns();
        if (received.ages_ms.empty()) received.first_ns = received.last_ns;
        received.ages_ms.push_back(static_cast<double>(received.last_ns - numbers.sent_ns) * 1e-6);
      });
  static bool subscribed = false;
  mosquitto_subscribe_callback_set(
      client, [](mosquitto*, void*, int, int, const int*) { subscribed = true; });
  mosquitto_subscribe(client, nullptr, "x", qos);
  while (!subscribed) mosquitto_loop(client, 10, 1);
  std::puts("ready");
  std::fflush(stdout);
  int64_t idle_since = now_ns();
  size_t before = 0;
  while (received.ages_ms.size() < count && now_ns() - idle_since < 5'000'000'000) {
    mosquitto_loop(client, 100, 1);
    if (std::exchange(before, received.ages_ms.size()) != received.ages_ms.size()) {
      idle_since = now_ns();
    }
  }
  mosquitto_disconnect(client);
  auto& ages = received.ages_ms;
  std::sort(ages.begin(), ages.end());
  const auto part = [&](double share) {
    return ages.empty() ? 0.0 : ages[static_cast<size_t>(share * double(ages.size() - 1))];
  };
  std::printf("%.6f %zu %.4f %.4f\n", double(received.last_ns - received.first_ns) * 1e-9,
              ages.size(), part(0.5), part(0.99));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  mosquitto_lib_init();
  mosquitto* client = mosquitto_new(nullptr, true, nullptr);
  mosquitto_int_option(client, MOSQ_OPT_TCP_NODELAY, 1);
  if (mosquitto_connect(client, "127.0.0.1", std::atoi(argv[2]), 60) != 0) return 1;
  const int qos = std::atoi(argv[3]);
  if (std::string(argv[1]) == "send") {
    return send(client, qos, std::atof(argv[4]), std::atol(argv[5]));
  }
  return receive(client, qos, static_cast<size_t>(std::atol(argv[4])));
}
