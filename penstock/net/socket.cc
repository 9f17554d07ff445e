#include "penstock/net/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sodium.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>

#include "penstock/base/error.h"
#include "penstock/net/user_folder.h"

namespace penstock::net {

namespace {

constexpr char kAddress[] = "address";
constexpr double kVanishedS = 30;

[[noreturn]] void refuse(const std::string& address, const std::string& why) {
  throw Error(Code::kInvalidArgument, kAddress,
              "'" + address + "': " + why +
                  "; an address is host:port, tcp://host:port, unix:@name or unix:/path");
}

constexpr size_t kMaxPathBytes = sizeof(sockaddr_un::sun_path) - 1;

std::string random_name() {
  std::random_device device;
  const uint64_t number = uint64_t{device()} << 32 | device();
  return "free-" + std::to_string(number);
}

// REQUIRED: the path is not too long.
SocketAddress file_address(const std::string& path) {
  sockaddr_un text{};
  text.sun_family = AF_UNIX;
  std::memcpy(text.sun_path, path.data(), path.size());
  SocketAddress result;
  std::memcpy(&result.storage, &text, sizeof(text));
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  return result;
}

SocketAddress unix_address(const std::string& address, const std::string& name) {
  if (name.empty()) refuse(address, "it has no name");
  if (name[0] == '@') return named_address("net", name.size() > 1 ? name.substr(1) : random_name());
  if (name[0] != '/') refuse(address, "the path of a socket file must begin with /");
  if (name.size() > kMaxPathBytes) {
    refuse(address,
           "longer than the system's limit of " + std::to_string(kMaxPathBytes) + " bytes");
  }
  return file_address(name);
}

// The name as a part of a file's name: "%2F" for a slash.
std::string escaped(const std::string& name) {
  std::string text;
  for (const char each : name) {
    if (std::isalnum(static_cast<unsigned char>(each)) || std::strchr("._-", each) != nullptr) {
      text += each;
    } else {
      char code[4];
      std::snprintf(code, sizeof(code), "%%%02X", static_cast<unsigned char>(each));
      text += code;
    }
  }
  return text;
}

// Begins with a character that escaped() leaves out.
std::string hashed(const std::string& name) {
  unsigned char hash[crypto_generichash_BYTES_MIN];
  char text[2 * sizeof(hash) + 1];
  crypto_generichash(hash, sizeof(hash), reinterpret_cast<const unsigned char*>(name.data()),
                     name.size(), nullptr, 0);
  return std::string("~") + sodium_bin2hex(text, sizeof(text), hash, sizeof(hash));
}

std::vector<SocketAddress> tcp_addresses(const std::string& address, const std::string& rest) {
  const size_t colon = rest.rfind(':');
  if (colon == std::string::npos || colon == 0) refuse(address, "it has no host and port");
  std::string host = rest.substr(0, colon);
  const std::string port = rest.substr(colon + 1);
  if (host.front() == '[' && host.back() == ']' && host.size() > 2) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    refuse(address, "an IPv6 host needs brackets, as in [::1]:7000");
  }
  if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != port.npos ||
      std::stoi(port) > 65535) {
    refuse(address, "the port must be a number up to 65535");
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &list)) {
    throw Error(Code::kNotFound, kAddress, "no host '" + host + "': " + gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, freeaddrinfo);
  std::vector<SocketAddress> result;
  for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
    SocketAddress one;
    std::memcpy(&one.storage, each->ai_addr, each->ai_addrlen);
    one.length = each->ai_addrlen;
    result.push_back(one);
  }
  if (result.empty()) throw Error(Code::kNotFound, kAddress, "no host '" + host + "'");
  return result;
}

template <typename T>
T as(const sockaddr_storage& storage) {
  T result;
  std::memcpy(&result, &storage, sizeof(result));
  return result;
}

}  // namespace

SocketAddress named_address(const std::string& kind, const std::string& name) {
  const std::string folder = user_folder(), prefix = folder + "/" + kind + "-";
  std::string path = prefix + escaped(name);
  if (path.size() > kMaxPathBytes) path = prefix + hashed(name);
  if (path.size() > kMaxPathBytes) {
    throw Error(Code::kInvalidArgument, kAddress,
                folder + " is too long a path for sockets, which may have " +
                    std::to_string(kMaxPathBytes) +
                    " bytes with their names: set XDG_RUNTIME_DIR "
                    "to a shorter one");
  }
  SocketAddress address = file_address(path);
  address.name = name;
  return address;
}

bool SocketAddress::is_loopback() const {
  if (is_unix()) return true;
  if (storage.ss_family == AF_INET) {
    return ntohl(as<sockaddr_in>(storage).sin_addr.s_addr) >> 24 == 127;
  }
  const auto six = as<sockaddr_in6>(storage);
  if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) return six.sin6_addr.s6_addr[12] == 127;
  return IN6_IS_ADDR_LOOPBACK(&six.sin6_addr);
}

std::string SocketAddress::file() const {
  if (!is_unix()) return {};
  return as<sockaddr_un>(storage).sun_path;
}

std::string SocketAddress::host() const {
  if (is_unix()) return {};
  char host[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_INET) {
    const auto four = as<sockaddr_in>(storage);
    return inet_ntop(AF_INET, &four.sin_addr, host, sizeof(host));
  }
  const auto six = as<sockaddr_in6>(storage);
  return std::string("[") + inet_ntop(AF_INET6, &six.sin6_addr, host, sizeof(host)) + "]";
}

std::string SocketAddress::text() const {
  if (is_unix()) return "unix:" + (name.empty() ? file() : "@" + name);
  const uint16_t port = storage.ss_family == AF_INET ? as<sockaddr_in>(storage).sin_port
                                                     : as<sockaddr_in6>(storage).sin6_port;
  return "tcp://" + host() + ":" + std::to_string(ntohs(port));
}

std::vector<SocketAddress> resolve(const std::string& address) {
  if (address.find('\0') != std::string::npos) refuse(address, "it contains a zero byte");
  if (address.starts_with("unix:")) return {unix_address(address, address.substr(5))};
  if (address.starts_with("tcp://")) return tcp_addresses(address, address.substr(6));
  if (address.find("://") != std::string::npos) refuse(address, "unknown scheme");
  return tcp_addresses(address, address);
}

namespace {

void set_option(int fd, int level, int option, int value) {
  if (setsockopt(fd, level, option, &value, sizeof(value)) != 0) {
    throw Error::from_errno(errno, "setsockopt",
                            "cannot set socket option " + std::to_string(option));
  }
}

timeval as_timeval(double seconds) {
  timeval result{};  // zero: for ever
  if (!(seconds < 1e9)) return result;
  result.tv_sec = static_cast<time_t>(seconds);
  result.tv_usec = static_cast<suseconds_t>((seconds - std::floor(seconds)) * 1e6);
  if (result.tv_sec == 0) result.tv_usec = std::max<suseconds_t>(result.tv_usec, 1000);
  return result;
}

}  // namespace

os::Fd make_socket(const SocketAddress& address) {
  os::Fd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw Error::from_errno(errno, "socket", "cannot make a socket");
  return fd;
}

bool wait_for(int fd, short events, const Deadline& deadline) {
  pollfd item{fd, events, 0};
  return poll(&item, 1, deadline.poll_ms()) > 0;
}

void prepare_connected(int fd, bool tcp, double call_timeout_s, double stall_timeout_s) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0) {
    throw Error::from_errno(errno, "fcntl", "cannot make a socket blocking");
  }
  const timeval timeout = as_timeval(call_timeout_s);
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    if (setsockopt(fd, SOL_SOCKET, option, &timeout, sizeof(timeout)) != 0) {
      throw Error::from_errno(errno, "setsockopt", "cannot set a socket's timeouts");
    }
  }
  if (!tcp) return;
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  // Keep-alive is silent while data is unacknowledged; TCP itself would retry for a quarter of an
  // hour. The limit also ends a connection whose peer lives but reads nothing, so it is no shorter
  // than the caller's own, and there is none if the caller has none.
  if (stall_timeout_s < 1e6) {
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
               static_cast<int>(1e3 * std::max(stall_timeout_s, kVanishedS)));
  }
}

void set_wake_bytes(int fd, size_t bytes) noexcept {
  const int value = static_cast<int>(bytes);
  (void)setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &value, sizeof value);
}

std::optional<UnixPeer> unix_peer(int fd) {
  ucred who{};
  socklen_t length = sizeof(who);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0) return std::nullopt;
  return UnixPeer{who.pid, who.uid};
}

SocketAddress own_address(int fd) {
  SocketAddress result;
  result.length = sizeof(result.storage);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&result.storage), &result.length) != 0) {
    throw Error::from_errno(errno, "getsockname", "cannot read a socket's own address");
  }
  return result;
}

SocketAddress peer_address(int fd) {
  SocketAddress result;
  result.length = sizeof(result.storage);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&result.storage), &result.length) != 0) {
    throw Error::from_errno(errno, "getpeername", "cannot read the peer's address");
  }
  return result;
}

bool on_same_host(int fd) {
  const SocketAddress peer = peer_address(fd);
  return peer.is_loopback() || peer.host() == own_address(fd).host();
}

}  // namespace penstock::net
