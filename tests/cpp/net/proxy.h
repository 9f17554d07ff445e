#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <list>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "penstock/base/os.h"
#include "penstock/net/socket.h"
#include "tests/cpp/net/line.h"

namespace penstock::net::testing {

// A fault of one connection, after so many bytes in one direction.
struct Fault {
  enum Kind {
    kNone,
    kCut,     // the connection is reset, at both ends
    kRepeat,  // the last bytes are sent again
    kFreeze,  // no more bytes are sent, and no end hangs up
    kTrickle  // up to that byte, bytes are sent one by one, with delays
  };
  Kind kind = kNone;
  size_t after = 0;
  bool from_client = true;
};

// A proxy on loopback with faults: connections to address() are forwarded to another address. The
// n-th connection has the plan's n-th fault, later ones have none. It may record the bytes.
class Proxy {
 public:
  enum class Keeps { kNothing, kFromClients, kAll };

  Proxy(std::string upstream, std::vector<Fault> plan, Keeps keeps = Keeps::kNothing)
      : upstream_(std::move(upstream)), plan_(std::move(plan)), keeps_(keeps) {
    const SocketAddress any = resolve("127.0.0.1:0").front();
    listener_.reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind(listener_.get(), any.get(), any.length), 0);
    EXPECT_EQ(listen(listener_.get(), 64), 0);
    address_ = own_address(listener_.get()).text();
    accepting_ = std::thread([this] { accept_all(); });
  }
  ~Proxy() {
    shutdown(listener_.get(), SHUT_RDWR);
    accepting_.join();
    for (auto& each : lines_) {
      each.cut();
      for (auto& thread : each.pumps) thread.join();
    }
  }

  const std::string& address() const { return address_; }
  size_t connections() const { return connections_; }
  size_t faults() const { return faults_; }  // number of faults so far
  // The recorded bytes: first those of all clients, then those of the server.
  std::vector<std::byte> passed() const {
    std::lock_guard lock(kept_mutex_);
    std::vector<std::byte> all = kept_[0];
    all.insert(all.end(), kept_[1].begin(), kept_[1].end());
    return all;
  }

 private:
  struct Route {
    os::Fd client, server;
    Fault fault;
    std::array<std::thread, 2> pumps;
    void cut() const {
      shutdown(client.get(), SHUT_RDWR);
      shutdown(server.get(), SHUT_RDWR);
    }
    // Bytes in transit are lost.
    void reset() const {
      const linger now{1, 0};
      setsockopt(client.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
      setsockopt(server.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
      cut();
    }
  };

  void accept_all() {
    for (;;) {
      os::Fd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!client) return;
      const SocketAddress where = resolve(upstream_).front();
      os::Fd server(socket(where.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
      // The server does not exist now: drop the connection.
      if (::connect(server.get(), where.get(), where.length) != 0) continue;
      const size_t number = connections_++;
      Route& route = lines_.emplace_back();
      route.client = std::move(client);
      route.server = std::move(server);
      if (number < plan_.size()) route.fault = plan_[number];
      route.pumps[0] = std::thread([this, &route] { pump(route, true); });
      route.pumps[1] = std::thread([this, &route] { pump(route, false); });
    }
  }

  void pump(const Route& route, bool from_client) {
    const int from = (from_client ? route.client : route.server).get();
    const int to = (from_client ? route.server : route.client).get();
    const Fault fault = route.fault.from_client == from_client ? route.fault : Fault{};
    std::vector<std::byte> bytes(64 * 1024);
    size_t total = 0;
    bool done = fault.kind == Fault::kNone, frozen = false;
    for (;;) {
      const size_t most = done ? bytes.size()
                          : fault.kind == Fault::kTrickle
                              ? 1
                              : std::min(bytes.size(), std::max<size_t>(fault.after - total, 1));
      const ssize_t got = recv(from, bytes.data(), most, 0);
      if (got <= 0) break;
      total += static_cast<size_t>(got);
      keep(from_client, std::span(bytes).first(static_cast<size_t>(got)));
      if (!frozen && !send_all(to, bytes.data(), static_cast<size_t>(got))) break;
      if (!done && fault.kind == Fault::kTrickle && total % 16 == 0) poll(nullptr, 0, 1);
      if (done || total < fault.after) continue;
      done = true;
      ++faults_;
      if (fault.kind == Fault::kCut) route.reset();
      if (fault.kind == Fault::kFreeze) frozen = true;
      if (fault.kind == Fault::kRepeat) send_all(to, bytes.data(), static_cast<size_t>(got));
    }
    route.cut();
  }

  void keep(bool from_client, std::span<const std::byte> bytes) {
    if (keeps_ == Keeps::kNothing || (keeps_ == Keeps::kFromClients && !from_client)) return;
    std::lock_guard lock(kept_mutex_);
    auto& kept = kept_[from_client ? 0 : 1];
    kept.insert(kept.end(), bytes.begin(), bytes.end());
  }

  static bool send_all(int fd, const std::byte* bytes, size_t count) {
    while (count > 0) {
      const ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes += sent;
      count -= static_cast<size_t>(sent);
    }
    return true;
  }

  const std::string upstream_;
  const std::vector<Fault> plan_;
  const Keeps keeps_;
  mutable std::mutex kept_mutex_;
  std::array<std::vector<std::byte>, 2> kept_;
  std::string address_;
  os::Fd listener_;
  std::atomic<size_t> connections_{0}, faults_{0};
  std::list<Route> lines_;  // the accepting thread's, until it has ended
  std::thread accepting_;
};

}  // namespace penstock::net::testing
