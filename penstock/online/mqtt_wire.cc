#include "penstock/online/mqtt_wire.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/net/socket.h"

namespace penstock::online::mqtt {
namespace {

constexpr size_t kReadBytes = 256 * 1024;

// The number of bytes that a call of recv() or send() moved; nullopt: none without waiting.
std::optional<size_t> moved(ssize_t bytes) {
  if (bytes >= 0) return static_cast<size_t>(bytes);
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return std::nullopt;
  throw closed(std::string("the connection was lost: ") + std::strerror(errno));
}

}  // namespace

std::string Wire::Broker::endpoint() const {
  const bool six = host.find(':') != std::string::npos;
  return (six ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

void Wire::open(const Broker& broker, double patience_s, const std::atomic<bool>& stopping) {
  in_begin_ = in_end_ = 0;
  out_.clear();
  out_sent_ = 0;
  connect(broker, patience_s, stopping);
  last_sent_ns_ = now_ns();
  if (!broker.tls) return;
  tls_ = std::make_unique<net::TlsClient>(socket_.get(), broker.host, *broker.tls);
  const Deadline deadline(patience_s);
  for (;;) {
    const auto step = tls_->handshake();
    if (step == net::TlsClient::Step::kDone) break;
    if (stopping || deadline.passed()) throw closed("no TLS handshake in time");
    const bool writes = step == net::TlsClient::Step::kWantsWrite;
    net::wait_for(socket_.get(), writes ? POLLOUT : POLLIN, Deadline(0.1));
  }
  last_sent_ns_ = now_ns();
}

void Wire::connect(const Broker& broker, double patience_s, const std::atomic<bool>& stopping) {
  int error = 0;
  for (const net::SocketAddress& address : net::resolve("tcp://" + broker.endpoint())) {
    os::Fd fd = net::make_socket(address);
    const Deadline deadline(patience_s);
    error = ::connect(fd.get(), address.get(), address.length) == 0 ? 0 : errno;
    if (error == EINPROGRESS || error == EINTR) {
      error = ETIMEDOUT;
      while (!stopping && !deadline.passed()) {
        if (!net::wait_for(fd.get(), POLLOUT, Deadline::earlier(deadline, Deadline(0.1)))) continue;
        socklen_t length = sizeof(error);
        if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
        break;
      }
    }
    if (error != 0) continue;
    const int on = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    socket_ = std::move(fd);
    return;
  }
  throw Error(error == ECONNREFUSED ? Code::kNotFound : Code::kSystem, "MQTT",
              "cannot connect to " + broker.endpoint() + ": " + std::strerror(error));
}

void Wire::close() {
  tls_.reset();
  socket_.reset();
  tls_wants_write_ = false;
}

bool Wire::wait(bool readable, int64_t timeout_ms) {
  pollfd fds[] = {{wake_, POLLIN, 0}, {socket_.get(), 0, 0}};
  const bool writes = unsent_bytes() != 0;
  if (readable) fds[1].events |= POLLIN;
  if (writes || tls_wants_write_) fds[1].events |= POLLOUT;
  const int found = poll(fds, socket_ ? 2 : 1, static_cast<int>(timeout_ms));
  if (found < 0 && errno != EINTR) throw Error::from_errno(errno, "MQTT", "poll");
  if ((fds[0].revents & POLLIN) != 0) {
    uint64_t count = 0;
    (void)!::read(wake_, &count, sizeof(count));
  }
  if (!socket_) return false;
  if ((fds[1].revents & (POLLERR | POLLHUP)) != 0 && !readable) {
    throw closed("the connection was lost");
  }
  return writes && send();
}

bool Wire::send() {
  while (out_sent_ < out_.size()) {
    const auto rest = std::span<const std::byte>(out_).subspan(out_sent_);
    const auto sent =
        tls_ != nullptr
            ? tls_->write(rest)
            : moved(::send(socket_.get(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
    if (!sent) return false;
    out_sent_ += *sent;
    last_sent_ns_ = now_ns();
  }
  out_.clear();
  out_sent_ = 0;
  return true;
}

void Wire::read() {
  if (in_begin_ == in_end_) {
    in_begin_ = in_end_ = 0;
  } else if (in_begin_ > 0 && in_.size() - in_end_ < kReadBytes) {
    std::memmove(in_.data(), in_.data() + in_begin_, in_end_ - in_begin_);
    in_end_ -= std::exchange(in_begin_, 0);
  }
  if (in_.size() - in_end_ < kReadBytes) in_.resize(std::max(in_.size() * 2, in_end_ + kReadBytes));
  const auto space = std::span(in_).subspan(in_end_);
  std::optional<size_t> got;
  if (tls_ != nullptr) {
    got = tls_->read(space);
    tls_wants_write_ = tls_->wants_write();
  } else {
    got = moved(recv(socket_.get(), space.data(), space.size(), MSG_DONTWAIT));
  }
  if (!got) return;
  if (*got == 0) throw closed("the broker closed the connection");
  in_end_ += *got;
}

std::optional<Frame> Wire::front(size_t max_bytes) const {
  return next_frame(std::span(in_).subspan(in_begin_, in_end_ - in_begin_), max_bytes);
}

}  // namespace penstock::online::mqtt
