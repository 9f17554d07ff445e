#include "penstock/net/listener.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/net/shake_hands.h"
#include "penstock/net/socket.h"

namespace penstock::net {
namespace {

constexpr char kListener[] = "Listener";

// A socket file that nobody serves any more.
bool abandoned(const SocketAddress& address) {
  os::Fd probe = make_socket(address);
  return ::connect(probe.get(), address.get(), address.length) != 0 && errno == ECONNREFUSED;
}

os::Fd bind_to(const SocketAddress& address) {
  os::Fd fd = make_socket(address);
  const int yes = 1;  // a server that is begun again finds its port free
  if (!address.is_unix()) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  int result = bind(fd.get(), address.get(), address.length);
  const std::string file = address.file();
  if (result != 0 && errno == EADDRINUSE && !file.empty() && abandoned(address)) {
    unlink(file.c_str());
    result = bind(fd.get(), address.get(), address.length);
  }
  if (result != 0) {
    const std::string text = address.text();
    if (errno == EADDRINUSE) {
      throw Error(Code::kInvalidArgument, kListener,
                  text + " is taken; port 0 and unix:@ are a free one");
    }
    throw Error::from_errno(errno, kListener, "cannot listen at " + text);
  }
  if (listen(fd.get(), SOMAXCONN) != 0) {
    throw Error::from_errno(errno, kListener, "cannot listen at " + address.text());
  }
  return fd;
}

}  // namespace

struct Listener::Stranger {
  os::Fd fd;
  std::string peer;
  Handshake handshake;
  Deadline deadline;
  short events = POLLIN | POLLOUT;
  bool gone = false;
};

Listener::Listener(const std::string& address, ListenOptions options)
    : options_(std::move(options)), wake_(os::event()) {
  Handshake::check(options_.secret, options_.encrypt);
  if (options_.most_handshakes == 0) {
    throw Error(Code::kInvalidArgument, kListener, "at least one handshake must be possible");
  }
  const SocketAddress where = resolve(address).front();
  if (!where.is_loopback() && options_.secret.empty()) {
    throw Error(Code::kInvalidArgument, kListener,
                "other hosts reach " + where.text() +
                    ": listening there takes a secret; give one, or listen at tcp://127.0.0.1:0");
  }
  local_ = where.is_unix();
  socket_ = bind_to(where);
  file_ = where.file();
  address_ = own_address(socket_.get()).text();
  watch_forks();
}

Listener::~Listener() {
  close();
  ignore_forks();
}

void Listener::after_fork_in_child() noexcept {
  closed_.store(true, std::memory_order_release);
  socket_.reset();
  for (const auto& each : strangers_) each->fd.reset();
  strangers_mutex_.unlock();
}

void Listener::close() noexcept {
  if (closed_.exchange(true)) return;
  os::signal_event(wake_.get());
  if (!file_.empty()) unlink(file_.c_str());
  shutdown(socket_.get(), SHUT_RDWR);  // nobody connects any more
}

// An empty one: nobody is waiting.
os::Fd Listener::next_socket() {
  for (;;) {
    os::Fd fd(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd || errno == EAGAIN || errno == EWOULDBLOCK || closed()) return fd;
    switch (errno) {
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM:
        // They wait on; looking at once again would only burn the processor.
        pause_ = Deadline(0.05);
        return fd;
      case EBADF:
      case EINVAL:
      case ENOTSOCK:
        throw Error::from_errno(errno, kListener, "cannot accept at " + address_);
      default:
        break;  // that of a connection which is gone by now
    }
  }
}

std::unique_ptr<Connection> Listener::take_local() {
  while (os::Fd fd = next_socket()) {
    const auto who = unix_peer(fd.get());
    if (!who || who->user != geteuid()) continue;
    return std::make_unique<Connection>(std::move(fd), true, "process " + std::to_string(who->pid),
                                        options_);
  }
  return nullptr;
}

void Listener::let_in() {
  // No more than may be at it: of the others the system keeps the line.
  for (size_t taken = 0; taken < options_.most_handshakes; ++taken) {
    os::Fd fd = next_socket();
    if (!fd) return;
    std::string peer;
    try {
      peer = peer_address(fd.get()).text();
    } catch (const Error&) {
      continue;  // gone
    }
    if (strangers_.size() >= options_.most_handshakes) strangers_.erase(strangers_.begin());
    strangers_.push_back(std::unique_ptr<Stranger>(
        new Stranger{std::move(fd), peer,
                     Handshake(Handshake::Side::kServer, options_.secret, options_.encrypt, peer),
                     Deadline(options_.handshake_timeout_s)}));
  }
}

// Whether it is complete.
bool Listener::shake(Stranger& stranger) {
  try {
    switch (shake_hands(stranger.fd.get(), stranger.handshake, stranger.peer)) {
      case Shaken::kReads:
        stranger.events = POLLIN;
        return false;
      case Shaken::kWrites:
        stranger.events = POLLOUT;
        return false;
      case Shaken::kRefused:
        stranger.gone = true;
        return false;
      case Shaken::kComplete:
        return true;
    }
  } catch (const Error&) {
    stranger.gone = true;  // nobody here asked for it
  }
  return false;
}

// One whose handshake is complete, if there is one.
std::unique_ptr<Listener::Stranger> Listener::known() {
  std::lock_guard lock(strangers_mutex_);
  let_in();
  std::unique_ptr<Stranger> found;
  for (auto& each : strangers_) {
    if (each->deadline.passed()) {
      each->gone = true;
    } else if (!found && shake(*each)) {
      found = std::move(each);
    }
  }
  std::erase_if(strangers_, [](const auto& each) { return each == nullptr || each->gone; });
  return found;
}

std::unique_ptr<Connection> Listener::take() {
  if (local_) return take_local();
  const auto one = known();
  if (!one) return nullptr;
  try {
    return std::make_unique<Connection>(std::move(one->fd), false, one->peer, options_,
                                        one->handshake.take_tls());
  } catch (const Error&) {
    return nullptr;  // gone in this moment
  }
}

// Until there may be something to take, somebody's time is over, or it is closed.
void Listener::wait(Deadline until) {
  std::vector<pollfd> items{{wake_.get(), POLLIN, 0}};
  if (pause_ && pause_->passed()) pause_.reset();
  if (pause_) {
    until = Deadline::earlier(until, *pause_);
  } else {
    items.push_back({socket_.get(), POLLIN, 0});
  }
  for (const auto& each : strangers_) {
    items.push_back({each->fd.get(), each->events, 0});
    until = Deadline::earlier(until, each->deadline);
  }
  poll(items.data(), items.size(), until.poll_ms());
}

std::unique_ptr<Connection> Listener::accept(double timeout_s) {
  const Deadline deadline(timeout_s);
  while (!closed()) {
    if (auto connection = take()) return connection;
    if (deadline.passed()) break;
    wait(deadline);
  }
  return nullptr;
}

}  // namespace penstock::net
