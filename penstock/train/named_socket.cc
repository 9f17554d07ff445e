#include "penstock/train/named_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "penstock/base/descriptor_message.h"
#include "penstock/base/error.h"

namespace penstock::train {
namespace {

struct Address {
  sockaddr_un text{};
  socklen_t length = 0;
};

// "\0penstock/1000/weights/actor"
Address address_of(const std::string& kind, const std::string& name) {
  if (name.empty() || name.size() > kMostName || name.find('\0') != std::string::npos) {
    throw Error(Code::kInvalidArgument, kind,
                "a name has 1 to " + std::to_string(kMostName) + " bytes and no zero among them");
  }
  const std::string path = "penstock/" + std::to_string(geteuid()) + "/" + kind + "/" + name;
  Address address;
  address.text.sun_family = AF_UNIX;
  if (path.size() + 1 > sizeof(address.text.sun_path)) {
    throw Error(Code::kInternal, kind, "the name's kind is too long");
  }
  std::memcpy(address.text.sun_path + 1, path.data(), path.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
  return address;
}

os::Fd make_socket() {
  os::Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw Error::from_errno(errno, "socket", "cannot make a Unix socket");
  return fd;
}

std::optional<ucred> credentials(int fd) {
  ucred who{};
  socklen_t length = sizeof(who);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0) return std::nullopt;
  return who;
}

const sockaddr* as_sockaddr(const Address& address) {
  return reinterpret_cast<const sockaddr*>(&address.text);
}

std::string who_serves(const std::string& kind, const std::string& name) {
  // Who has the name may not listen yet, or be gone by now.
  for (int tries = 0; tries < 20; ++tries) {
    if (auto peer = connect_to_name(kind, name)) return "process " + std::to_string(peer->pid);
    poll(nullptr, 0, 5);
  }
  return "another process";
}

}  // namespace

os::Fd serve_name(const std::string& kind, const std::string& name) {
  const Address address = address_of(kind, name);
  os::Fd fd = make_socket();
  if (bind(fd.get(), as_sockaddr(address), address.length) != 0) {
    if (errno != EADDRINUSE) throw Error::from_errno(errno, kind, "cannot take the name " + name);
    const std::string who = who_serves(kind, name);
    throw Error(Code::kInvalidArgument, kind,
                "the name '" + name + "' is taken: " + who + " serves it");
  }
  if (listen(fd.get(), SOMAXCONN) != 0) throw Error::from_errno(errno, kind, "listen");
  return fd;
}

std::optional<Peer> connect_to_name(const std::string& kind, const std::string& name) {
  const Address address = address_of(kind, name);
  Peer peer{make_socket(), 0};
  int result;
  do {
    result = connect(peer.fd.get(), as_sockaddr(address), address.length);
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    // EAGAIN: so many are waiting to be accepted that there is no room for one more.
    if (errno == ECONNREFUSED || errno == ENOENT || errno == EAGAIN) return std::nullopt;
    throw Error::from_errno(errno, kind, "cannot connect to '" + name + "'");
  }
  const auto who = credentials(peer.fd.get());
  if (!who) return std::nullopt;
  if (who->uid != geteuid()) {
    throw Error(Code::kInvalidArgument, kind,
                "the name '" + name + "' is served by process " + std::to_string(who->pid) +
                    " of another user, " + std::to_string(who->uid) + ": it is not trusted");
  }
  peer.pid = who->pid;
  return peer;
}

std::optional<Peer> accept_peer(int server, bool& failed) {
  failed = false;
  for (;;) {
    os::Fd fd(accept4(server, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      failed = errno != EAGAIN && errno != EWOULDBLOCK;
      return std::nullopt;
    }
    const auto who = credentials(fd.get());
    if (who && who->uid == geteuid()) return Peer{std::move(fd), who->pid};
  }
}

bool send_greeting(int fd, const Greeting& greeting, int descriptor) {
  auto bytes = std::as_bytes(std::span(&greeting, 1));
  return send_message(fd, bytes, descriptor, MSG_DONTWAIT) == static_cast<ssize_t>(bytes.size());
}

GreetingReader::State GreetingReader::read(int fd) {
  auto bytes = std::as_writable_bytes(std::span(&greeting_, 1));
  const ssize_t got = receive_message(fd, bytes.subspan(got_), descriptor_, MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? State::kMore : State::kEnded;
  if (got == 0) return got_ == 0 ? State::kEnded : State::kGarbage;
  got_ += static_cast<size_t>(got);
  const uint64_t magic = Greeting::kMagic;
  if (std::memcmp(bytes.data(), &magic, std::min(got_, sizeof(magic))) != 0) return State::kGarbage;
  if (got_ < sizeof(greeting_)) return State::kMore;
  const bool welcome = greeting_.answer == Greeting::Answer::kWelcome;
  if (welcome ? !descriptor_ : greeting_.answer != Greeting::Answer::kFull) return State::kGarbage;
  return State::kComplete;
}

}  // namespace penstock::train
