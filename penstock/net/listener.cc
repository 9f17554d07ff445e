#include "penstock/net/listener.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/net/handshake.h"
#include "penstock/net/socket.h"

namespace penstock::net {
namespace {

constexpr char kListener[] = "Listener";

constexpr int kAcceptsAtATime = 64;  // of Unix clients, before close() and the timeout are checked

os::Fd bind_tcp(const SocketAddress& address) {
  os::Fd fd = make_socket(address);
  const int yes = 1;  // a restarted server can bind the same port
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(fd.get(), address.get(), address.length) != 0) {
    if (errno == EADDRINUSE) {
      throw Error(Code::kInvalidArgument, kListener,
                  address.text() + " is in use; port 0 picks a free one");
    }
    throw Error::from_errno(errno, kListener, "cannot listen at " + address.text());
  }
  if (listen(fd.get(), SOMAXCONN) != 0) {
    throw Error::from_errno(errno, kListener, "cannot listen at " + address.text());
  }
  return fd;
}

}  // namespace

struct Listener::PendingConnection {
  os::Fd fd;
  std::string peer, host;
  Handshake handshake;
  Deadline deadline, silent_deadline;
  short events = POLLIN | POLLOUT;
  bool closed = false;
};

Listener::Listener(const std::string& address, ListenOptions options)
    : options_(std::move(options)), wake_(os::event()) {
  Handshake::check(options_.secret);
  if (options_.max_handshakes == 0) {
    throw Error(Code::kInvalidArgument, kListener, "max_handshakes must be at least 1");
  }
  const SocketAddress where = resolve(address).front();
  if (!where.is_loopback() && options_.secret.empty()) {
    throw Error(Code::kInvalidArgument, kListener,
                "other hosts can reach " + where.text() +
                    ": give a secret, or listen at tcp://127.0.0.1:0");
  }
  local_ = where.is_unix();
  if (!local_) handshake_ = Handshake::options(options_, true, where.text());
  watch_forks();
  try {
    const std::lock_guard lock(pending_mutex_);  // no fork inherits the socket
    if (local_) {
      file_ = SocketFile(where);
      address_ = where.text();
    } else {
      socket_ = bind_tcp(where);
      address_ = own_address(socket_.get()).text();
    }
  } catch (...) {
    ignore_forks();
    throw;
  }
}

Listener::~Listener() {
  close();
  ignore_forks();
}

void Listener::after_fork_in_child() noexcept {
  closed_.store(true, std::memory_order_release);
  socket_.reset();
  file_.abandon();
  for (const auto& each : pending_) each->fd.reset();
  for (const auto& each : authenticated_) each->fd.reset();
  pending_mutex_.unlock();
}

void Listener::close() noexcept {
  if (closed_.exchange(true)) return;
  os::signal_event(wake_.get());
  file_.remove_file();
  shutdown(listening(), SHUT_RDWR);  // no further connections
}

// Empty: no client is waiting.
os::Fd Listener::next_socket() {
  for (;;) {
    os::Fd fd(accept4(listening(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd || errno == EAGAIN || errno == EWOULDBLOCK || closed()) return fd;
    switch (errno) {
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM:
        // The clients keep waiting; an immediate retry would only use up the processor.
        pause_ = Deadline(0.05);
        return fd;
      case EBADF:
      case EINVAL:
      case ENOTSOCK:
        throw Error::from_errno(errno, kListener, "cannot accept at " + address_);
      default:
        break;  // an error of a connection that was closed meanwhile: try the next
    }
  }
}

std::unique_ptr<Connection> Listener::accept_local() {
  for (int i = 0; i < kAcceptsAtATime; ++i) {
    os::Fd fd = next_socket();
    if (!fd) break;
    const auto who = unix_peer(fd.get());
    if (!who || who->user != geteuid()) continue;
    return std::make_unique<Connection>(std::move(fd), true, "process " + std::to_string(who->pid),
                                        options_);
  }
  return nullptr;
}

void Listener::accept_pending() {
  // No more than max_handshakes; the system queues the others.
  for (size_t taken = 0; taken < options_.max_handshakes; ++taken) {
    os::Fd fd = next_socket();
    if (!fd) return;
    std::string text, host;
    Handshake::Options options = handshake_;
    try {
      const SocketAddress peer = peer_address(fd.get());
      text = peer.text();
      host = peer.host();
      options.requires_encryption = options_.encrypt.value_or(!on_same_host(fd.get()));
    } catch (const Error&) {
      continue;  // the client disconnected
    }
    if (pending_.size() >= options_.max_handshakes) disconnect_one();
    pending_.push_back(std::unique_ptr<PendingConnection>(new PendingConnection{
        std::move(fd), text, host, Handshake(Handshake::Side::kServer, options, text),
        Deadline(options_.handshake_timeout_s), Deadline(options_.silent_timeout_s)}));
  }
}

// Proofs that have arrived meanwhile are read first, so silent ones push none of them
// out. A host that opens many connections pushes out its own.
void Listener::disconnect_one() {
  advance_all();
  if (pending_.size() < options_.max_handshakes) return;
  std::map<std::string, size_t> clients;
  size_t most = 0;
  for (const auto& each : pending_) most = std::max(most, ++clients[each->host]);
  auto evicted = pending_.end();
  for (auto each = pending_.begin(); each != pending_.end(); ++each) {
    if (clients[(*each)->host] < most) continue;
    if ((*each)->handshake.peer_silent()) {
      evicted = each;
      break;
    }
    if (evicted == pending_.end()) evicted = each;
  }
  pending_.erase(evicted);
}

// True if the handshake is complete.
bool Listener::advance(PendingConnection& pending) {
  try {
    switch (advance_handshake(pending.fd.get(), pending.handshake, pending.peer)) {
      case HandshakeStatus::kWantsRead:
        pending.events = POLLIN;
        return false;
      case HandshakeStatus::kWantsWrite:
        pending.events = POLLOUT;
        return false;
      case HandshakeStatus::kRefused:
        pending.closed = true;
        return false;
      case HandshakeStatus::kComplete:
        return true;
    }
  } catch (const Error&) {
    pending.closed = true;  // a failure of the client's, no error of accept()
  }
  return false;
}

// Moves those whose handshake is complete to authenticated_, and disconnects those that are late.
void Listener::advance_all() {
  for (auto& each : pending_) {
    // A late client is read from once more: this thread may have been away.
    if (advance(*each)) {
      authenticated_.push_back(std::move(each));
    } else if (each->deadline.passed() ||
               (each->handshake.peer_silent() && each->silent_deadline.passed())) {
      each->closed = true;
    }
  }
  std::erase_if(pending_, [](const auto& each) { return each == nullptr || each->closed; });
}

// A connection whose handshake is complete; nullptr: none is.
std::unique_ptr<Listener::PendingConnection> Listener::take_authenticated() {
  std::lock_guard lock(pending_mutex_);
  if (authenticated_.empty()) {
    accept_pending();
    advance_all();
  }
  if (authenticated_.empty()) return nullptr;
  auto first = std::move(authenticated_.front());
  authenticated_.pop_front();
  return first;
}

std::unique_ptr<Connection> Listener::try_accept() {
  if (local_) return accept_local();
  const auto one = take_authenticated();
  if (!one) return nullptr;
  try {
    return std::make_unique<Connection>(std::move(one->fd), false, one->peer, options_,
                                        one->handshake.take_tls());
  } catch (const Error&) {
    return nullptr;  // disconnected meanwhile
  }
}

// Waits for activity on a socket, a handshake's deadline, `until`, or close().
void Listener::wait(Deadline until) {
  std::vector<pollfd> items{{wake_.get(), POLLIN, 0}};
  if (pause_ && pause_->passed()) pause_.reset();
  if (pause_) {
    until = Deadline::earlier(until, *pause_);
  } else {
    items.push_back({listening(), POLLIN, 0});
  }
  for (const auto& each : pending_) {
    items.push_back({each->fd.get(), each->events, 0});
    until = Deadline::earlier(until, each->deadline);
    if (each->handshake.peer_silent()) until = Deadline::earlier(until, each->silent_deadline);
  }
  poll(items.data(), items.size(), until.poll_ms());
}

std::unique_ptr<Connection> Listener::accept(double timeout_s) {
  const Deadline deadline(timeout_s);
  while (!closed()) {
    if (auto connection = try_accept()) return connection;
    if (deadline.passed()) break;
    wait(deadline);
  }
  return nullptr;
}

}  // namespace penstock::net
