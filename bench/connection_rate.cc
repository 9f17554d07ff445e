// The rate of large messages between two threads over loopback, compared with plain send() and
// recv() of the same bytes over the same kind of socket, in a loop that does nothing else. usage:
// connection_rate [MB of a message] [rounds]. Prints a line of JSON for each kind of connection:
// GB/s of both, best and median of the rounds, which alternate.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/net/connection.h"
#include "penstock/net/listener.h"
#include "penstock/net/socket.h"

namespace penstock::net {
namespace {

constexpr int kMessages = 8;  // of a round

// Connected sockets of the same kind, with the same options, that block.
std::pair<os::Fd, os::Fd> plain_pair(const std::string& kind) {
  const SocketAddress want = resolve(kind).front();
  os::Fd server(socket(want.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (bind(server.get(), want.get(), want.length) != 0 || listen(server.get(), 1) != 0) exit(1);
  const SocketAddress where = own_address(server.get());
  os::Fd client(socket(want.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(client.get(), where.get(), where.length) != 0) exit(1);
  if (want.is_unix()) unlink(want.file().c_str());
  return {std::move(client), os::Fd(accept(server.get(), nullptr, nullptr))};
}

template <typename Send, typename Receive>
double rate(size_t bytes, Send send, Receive receive) {
  const uint64_t begin = now_ns();
  std::thread sender([&] {
    for (int i = 0; i < kMessages; ++i) send();
  });
  for (int i = 0; i < kMessages; ++i) receive();
  sender.join();
  return static_cast<double>(bytes) * kMessages / static_cast<double>(now_ns() - begin);
}

void measure(const std::string& name, const std::string& kind, const LinkOptions& options,
             size_t bytes, int rounds) {
  std::vector<std::byte> from(bytes, std::byte{1}), into(bytes);
  Listener listener(kind, ListenOptions{options});
  std::unique_ptr<Connection> a, b;
  std::thread connecting([&] { a = connect(listener.address(), ConnectOptions{options}); });
  b = listener.accept(10);
  connecting.join();
  auto [plain_a, plain_b] = plain_pair(kind);

  std::vector<double> ours, plain;
  for (int round = -1; round < rounds; ++round) {
    const double one = rate(
        bytes,
        [&] {
          const std::span<const std::byte> body[] = {from};
          a->send({}, body);
        },
        [&] {
          if (b->receive(kForEver)->body_bytes != bytes) exit(1);
          b->receive_body(into);
        });
    const double other = rate(
        bytes,
        [&] {
          for (size_t at = 0; at < bytes;) {
            const ssize_t sent = send(plain_a.get(), from.data() + at, bytes - at, MSG_NOSIGNAL);
            if (sent <= 0) exit(1);
            at += static_cast<size_t>(sent);
          }
        },
        [&] {
          for (size_t at = 0; at < bytes;) {
            const ssize_t got = recv(plain_b.get(), into.data() + at, bytes - at, 0);
            if (got <= 0) exit(1);
            at += static_cast<size_t>(got);
          }
        });
    if (round < 0) continue;  // the first round warms the caches
    ours.push_back(one);
    plain.push_back(other);
  }
  std::ranges::sort(ours);
  std::ranges::sort(plain);
  const double median = ours[ours.size() / 2], other = plain[plain.size() / 2];
  printf(
      "{\"line\": \"%s\", \"bytes\": %zu, \"gb_s\": %.3f, \"best_gb_s\": %.3f, "
      "\"plain_gb_s\": %.3f, \"plain_best_gb_s\": %.3f, \"ratio\": %.3f}\n",
      name.c_str(), bytes, median, ours.back(), other, plain.back(), median / other);
  fflush(stdout);
}

}  // namespace
}  // namespace penstock::net

int main(int count, char** words) {
  using namespace penstock::net;
  const size_t bytes = static_cast<size_t>(count > 1 ? atof(words[1]) * 1e6 : 40e6);
  const int rounds = count > 2 ? atoi(words[2]) : 5;
  LinkOptions secret, encrypted;
  secret.secret = encrypted.secret = "the secret of a bench";
  encrypted.encrypt = true;
  const std::string only = count > 3 ? words[3] : "";
  const auto line = [&](const char* name, const char* kind, const LinkOptions& options) {
    if (only.empty() || only == name) measure(name, kind, options, bytes, rounds);
  };
  line("tcp", "tcp://127.0.0.1:0", {});
  line("tcp with a secret", "tcp://127.0.0.1:0", secret);
  line("unix", "unix:@", {});
  line("tcp encrypted", "tcp://127.0.0.1:0", encrypted);
}
