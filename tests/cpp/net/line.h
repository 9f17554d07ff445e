#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/net/connection.h"
#include "penstock/net/handshake.h"
#include "penstock/net/listener.h"
#include "penstock/net/socket.h"
#include "tests/cpp/errors.h"
#include "tests/cpp/io/bytes.h"

namespace penstock::net::testing {

using penstock::testing::code_of;

inline constexpr char kSecret[] = "a secret of tests";

// Runs accept() in a thread and `other` in this one; returns the accepted connection.
template <typename Function>
std::unique_ptr<Connection> accept_while(Listener& listener, Function other) {
  std::unique_ptr<Connection> accepted;
  std::thread accepting([&] { accepted = listener.accept(60); });
  other();
  accepting.join();
  EXPECT_TRUE(accepted);
  return accepted;
}

// Two ends of a connection in one process.
struct Line {
  explicit Line(const std::string& address, const LinkOptions& options = {})
      : listener(address, ListenOptions{options}) {
    b = accept_while(listener, [&] {
      a = connect(listener.address(), ConnectOptions{options, 60});
    });
  }

  Listener listener;
  std::unique_ptr<Connection> a, b;
};

// A connected socket without a Connection.
inline os::Fd raw_socket(const std::string& address) {
  const SocketAddress where = resolve(address).front();
  os::Fd fd(socket(where.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(fd.get(), where.get(), where.length), 0);
  return fd;
}

// The same after a handshake, and the Connection at the other end.
struct RawLine {
  explicit RawLine(const std::string& address, const LinkOptions& options = {})
      : listener(address, ListenOptions{options}) {
    b = accept_while(listener, [&] {
      a = raw_socket(listener.address());
      if (listener.address().starts_with("unix")) return;
      Handshake handshake(Handshake::Side::kClient, Handshake::options(options, true, "raw"),
                          "raw");
      while (advance_handshake(a.get(), handshake, "raw") != HandshakeStatus::kComplete) {
        wait_for(a.get(), POLLIN, Deadline(60));
      }
      tls = handshake.take_tls();
    });
  }

  void send(std::span<const std::byte> bytes) {
    ASSERT_EQ(::send(a.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  Listener listener;
  os::Fd a;
  std::unique_ptr<Tls> tls;
  std::unique_ptr<Connection> b;
};

inline std::string text_of(std::span<const std::byte> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

inline std::vector<std::byte> pattern(size_t bytes) {
  std::vector<std::byte> result(bytes);
  uint32_t number = 1;
  for (auto& each : result) {
    number = number * 1664525 + 1013904223;
    each = static_cast<std::byte>(number >> 24);
  }
  return result;
}

}  // namespace penstock::net::testing
