#include "penstock/net/connection.h"

#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "penstock/base/descriptor_message.h"
#include "penstock/base/error.h"
#include "penstock/net/socket.h"
#include "penstock/net/tls.h"

namespace penstock::net {
namespace {

constexpr char kConnection[] = "Connection";
constexpr size_t kMaxParts = std::min(IOV_MAX, 1024);
// A thread that waits for a large body over TCP is woken for so many bytes at a time: a wake-up for
// each packet costs both ends about as much as the copies.
constexpr size_t kWakeBytes = 512 * 1024;
constexpr size_t kTlsBatchBytes = 256 * 1024;  // encrypted before they are sent

bool would_block(int error_number) { return error_number == EAGAIN || error_number == EWOULDBLOCK; }

// The parts of a message, as a window of at most kMaxParts iovecs at a time.
class Parts {
 public:
  Parts(std::span<const std::byte> header, std::span<const std::byte> head,
        std::span<const std::span<const std::byte>> body)
      : first_{header, head}, body_(body) {
    fill();
  }

  bool empty() const { return begin_ == end_; }
  bool last() const { return next_ == 2 + body_.size(); }
  std::span<const iovec> window() const {
    return std::span(window_, kMaxParts).subspan(begin_, end_ - begin_);
  }

  void advance(size_t bytes) {
    while (bytes > 0) {
      iovec& front = window_[begin_];
      const size_t taken = std::min(bytes, front.iov_len);
      front.iov_base = static_cast<std::byte*>(front.iov_base) + taken;
      front.iov_len -= taken;
      bytes -= taken;
      if (front.iov_len == 0) ++begin_;
    }
    if (begin_ == end_) fill();
  }

 private:
  void fill() {
    begin_ = end_ = 0;
    for (; next_ < 2 + body_.size() && end_ < kMaxParts; ++next_) {
      const auto part = next_ < 2 ? first_[next_] : body_[next_ - 2];
      if (!part.empty()) window_[end_++] = {const_cast<std::byte*>(part.data()), part.size()};
    }
  }

  std::span<const std::byte> first_[2];
  std::span<const std::span<const std::byte>> body_;
  size_t next_ = 0;
  iovec window_[kMaxParts];
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace

Connection::Connection(os::Fd socket, bool local, std::string peer, const ConnectionLimits& limits,
                       std::unique_ptr<Tls> tls)
    : socket_(std::move(socket)),
      local_(local),
      peer_(std::move(peer)),
      limits_(limits),
      tls_(std::move(tls)) {
  if (!(limits.stall_timeout_s > 0)) {
    throw Error(Code::kInvalidArgument, kConnection, "stall_timeout_s must be more than 0");
  }
  // Blocking calls with a timeout, without poll(): a large transfer is one system call.
  prepare_connected(socket_.get(), !local_,
                    limits.while_waiting ? std::min(limits.stall_timeout_s, 1e-9 * kCallbackNs)
                                         : limits.stall_timeout_s,
                    limits.stall_timeout_s);
  watch_forks();
}

Connection::~Connection() {
  close();
  ignore_forks();
}

void Connection::after_fork_in_child() noexcept {
  closed_.store(kForked, std::memory_order_release);
  socket_.reset();  // no shutdown(): the parent still uses the connection
  descriptor_.reset();
}

void Connection::check_open() const {
  const int state = closed_.load(std::memory_order_acquire);
  if (state == kOpen) return;
  throw Error(
      Code::kClosed, kConnection,
      state == kForked ? "the connection with " + peer_ +
                             " belongs to the parent process; a forked child must connect anew"
      : state == kDisconnected ? "the connection with " + peer_ + " was lost"
                               : "the connection with " + peer_ + " was closed by this process");
}

void Connection::disconnect() noexcept {
  int open = kOpen;
  closed_.compare_exchange_strong(open, kDisconnected);
  shutdown(socket_.get(), SHUT_RDWR);
}

void Connection::fail_disconnected(int error_number, const char* what) {
  check_open();  // close() was called here: report that as the reason
  disconnect();
  if (would_block(error_number)) {
    throw Error(Code::kTimeout, kConnection,
                peer_ + " " + what + " no byte for " + std::to_string(limits_.stall_timeout_s) +
                    " s in the middle of a message: the connection is closed");
  }
  throw Error(Code::kClosed, kConnection,
              "the connection with " + peer_ + " was lost" +
                  (error_number == 0 ? std::string() : std::string(": ") + strerror(error_number)));
}

void Connection::fail_invalid(const std::string& why) {
  disconnect();
  throw Error(Code::kDataLoss, kConnection,
              "invalid data from " + peer_ + ": " + why + "; the connection is closed");
}

// A socket call reached its timeout.
void Connection::on_no_progress(const Deadline& stalled, const char* what) {
  if (!limits_.while_waiting || stalled.passed()) fail_disconnected(EAGAIN, what);
  check_open();
}

void Connection::call_while_waiting() {
  if (!limits_.while_waiting || now_ns() < next_callback_ns_) return;
  restart_callback_timer();
  try {
    limits_.while_waiting();
  } catch (...) {
    disconnect();
    throw;
  }
}

void Connection::send(std::span<const std::byte> head,
                      std::span<const std::span<const std::byte>> body, int descriptor) {
  if (head.size() > kMaxHeadBytes) {
    throw Error(Code::kInvalidArgument, kConnection,
                "the head of a message has " + std::to_string(head.size()) +
                    " bytes; the limit is " + std::to_string(kMaxHeadBytes) +
                    ", larger data belongs in the body");
  }
  if (descriptor >= 0 && !local_) {
    throw Error(Code::kInvalidArgument, kConnection,
                "descriptors can be sent over Unix sockets only, not to " + peer_);
  }
  FrameHeader header;
  header.head_bytes = static_cast<uint32_t>(head.size());
  header.flags = descriptor >= 0 ? FrameHeader::kDescriptor : 0;
  for (const auto& part : body) header.body_bytes += part.size();

  check_open();
  std::lock_guard lock(sending_);
  check_open();
  restart_callback_timer();
  const auto header_bytes = std::as_bytes(std::span(&header, 1));
  if (tls_) {
    send_encrypted(header_bytes, head, body);
  } else {
    send_plain(header_bytes, head, body, descriptor);
  }
}

void Connection::send_plain(std::span<const std::byte> header, std::span<const std::byte> head,
                            std::span<const std::span<const std::byte>> body, int descriptor) {
  Parts parts(header, head, body);
  Deadline stalled(limits_.stall_timeout_s);
  while (!parts.empty()) {
    const ssize_t sent =
        send_message(socket_.get(), parts.window(), descriptor, parts.last() ? 0 : MSG_MORE);
    if (sent >= 0) {
      descriptor = -1;
      parts.advance(static_cast<size_t>(sent));
      stalled = Deadline(limits_.stall_timeout_s);
    } else if (would_block(errno)) {
      on_no_progress(stalled, "took");
    } else {
      fail_disconnected(errno, "took");
    }
    call_while_waiting();
  }
}

void Connection::send_encrypted(std::span<const std::byte> header, std::span<const std::byte> head,
                                std::span<const std::span<const std::byte>> body) {
  size_t encrypted = 0;
  const auto flush = [&] {
    encrypted_out_.clear();
    tls_->take_outgoing(encrypted_out_);
    send_plain(encrypted_out_, {}, {}, -1);
    encrypted = 0;
  };
  const auto encrypt = [&](std::span<const std::byte> plain) {
    while (!plain.empty()) {
      const auto piece = plain.first(std::min(plain.size(), kTlsBatchBytes - encrypted));
      try {
        tls_->encrypt(piece);
      } catch (const Error&) {
        check_open();  // the receiving thread disconnected because of invalid data
        disconnect();
        throw;
      }
      encrypted += piece.size();
      plain = plain.subspan(piece.size());
      if (encrypted == kTlsBatchBytes) flush();
    }
  };
  encrypt(header);
  encrypt(head);
  for (const auto& part : body) encrypt(part);
  if (encrypted > 0) flush();
}

ssize_t Connection::receive_some(std::span<std::byte> into, int flags) {
  if (tls_) return receive_encrypted(into, flags & ~MSG_WAITALL);
  return recv(socket_.get(), into.data(), into.size(), flags);
}

ssize_t Connection::receive_encrypted(std::span<std::byte> into, int flags) {
  try {
    for (;;) {
      if (const size_t got = tls_->read(into); got > 0) return static_cast<ssize_t>(got);
      const auto space = tls_->receive_buffer();
      const ssize_t came = recv(socket_.get(), space.data(), space.size(), flags);
      if (came <= 0) return came;
      tls_->received(static_cast<size_t>(came));
    }
  } catch (const Error&) {
    disconnect();
    throw;
  }
}

bool Connection::read_unit(std::span<std::byte> into, bool takes_descriptor,
                           const Deadline& deadline) {
  while (got_ < into.size()) {
    const auto rest = into.subspan(got_);
    const ssize_t result = takes_descriptor && local_
                               ? receive_message(socket_.get(), rest, descriptor_, MSG_DONTWAIT)
                               : receive_some(rest, MSG_DONTWAIT);
    if (result > 0) {
      got_ += static_cast<size_t>(result);
    } else if (result == 0) {
      fail_disconnected(0, "sent");
    } else if (would_block(errno)) {
      check_open();
      const Deadline slice(limits_.while_waiting ? 1e-9 * kCallbackNs : kForEver);
      const bool ready = wait_for(socket_.get(), POLLIN, Deadline::earlier(slice, deadline));
      call_while_waiting();
      if (!ready && deadline.passed()) return false;
    } else if (errno != EINTR) {
      fail_disconnected(errno, "sent");
    }
  }
  got_ = 0;
  return true;
}

void Connection::read_all(std::span<std::byte> into) {
  Deadline stalled(limits_.stall_timeout_s);
  while (!into.empty()) {
    check_open();
    const ssize_t got = receive_some(into, MSG_WAITALL);
    if (got > 0) {
      into = into.subspan(static_cast<size_t>(got));
      stalled = Deadline(limits_.stall_timeout_s);
    } else if (got == 0) {
      fail_disconnected(0, "sent");
    } else if (would_block(errno)) {
      on_no_progress(stalled, "sent");
    } else if (errno != EINTR) {
      fail_disconnected(errno, "sent");
    }
    call_while_waiting();
  }
}

std::optional<Received> Connection::receive(double timeout_s) {
  if (ended_) return std::nullopt;
  check_open();
  const Deadline deadline(timeout_s);
  restart_callback_timer();
  if (body_left_ > 0) {
    std::vector<std::byte> unread(std::min<uint64_t>(body_left_, 256 * 1024));
    while (body_left_ > 0) {
      receive_body(std::span(unread).first(std::min<uint64_t>(body_left_, unread.size())));
    }
  }
  const auto late = [&] {
    return Error(Code::kTimeout, kConnection,
                 "nothing from " + peer_ + " in " + std::to_string(timeout_s) + " s");
  };
  if (!has_header_) {
    if (!read_unit(std::as_writable_bytes(std::span(&header_, 1)), true, deadline)) throw late();
    if (header_.kind == FrameHeader::kGoodbye) {
      ended_ = true;
      return std::nullopt;
    }
    check_header();
    head_.resize(header_.head_bytes);
    has_header_ = true;
  }
  if (!read_unit(head_, false, deadline)) throw late();
  has_header_ = false;
  body_left_ = header_.body_bytes;
  return Received{std::exchange(head_, {}), header_.body_bytes, std::move(descriptor_)};
}

void Connection::check_header() {
  if (header_.kind != FrameHeader::kMessage || header_.reserved != 0 || header_.reserved_too != 0 ||
      (header_.flags & ~FrameHeader::kDescriptor) != 0) {
    fail_invalid("not a message header");
  }
  if (header_.head_bytes > kMaxHeadBytes) {
    fail_invalid("a head of " + std::to_string(header_.head_bytes) + " bytes");
  }
  if (header_.body_bytes > limits_.max_body_bytes) {
    fail_invalid("a body of " + std::to_string(header_.body_bytes) + " bytes; the limit is " +
                 std::to_string(limits_.max_body_bytes));
  }
  if (((header_.flags & FrameHeader::kDescriptor) != 0) != static_cast<bool>(descriptor_)) {
    fail_invalid(descriptor_
                     ? "an unannounced descriptor"
                     : "the announced descriptor is missing (this process may have too many open "
                       "files)");
  }
}

void Connection::receive_body(std::span<std::byte> into) {
  if (into.size() > body_left_) {
    throw Error(Code::kInvalidArgument, kConnection,
                "cannot read " + std::to_string(into.size()) + " bytes of a body with " +
                    std::to_string(body_left_) + " bytes left");
  }
  restart_callback_timer();
  body_left_ -= into.size();
  if (into.size() >= 2 * kWakeBytes && !local_ && !tls_) {
    // While the thread waits within the first part, at least kWakeBytes are still to come.
    set_wake_bytes(socket_.get(), kWakeBytes);
    read_all(into.first(into.size() - kWakeBytes));
    set_wake_bytes(socket_.get(), 1);
    into = into.last(kWakeBytes);
  }
  read_all(into);
}

bool Connection::idle() const {
  if (closed() || (tls_ && tls_->pending())) return false;
  char byte;
  const ssize_t got = recv(socket_.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
  return got < 0 && (would_block(errno) || errno == EINTR);
}

void Connection::send_goodbye() noexcept {
  FrameHeader header;
  header.kind = FrameHeader::kGoodbye;
  auto bytes = std::as_bytes(std::span(&header, 1));
  std::vector<std::byte> encrypted;
  if (tls_) {
    try {
      tls_->encrypt(bytes);
      tls_->take_outgoing(encrypted);
    } catch (const std::exception&) {
      return;  // the other end then sees a lost connection
    }
    bytes = encrypted;
  }
  ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Connection::close() noexcept {
  int open = kOpen;
  if (!closed_.compare_exchange_strong(open, kClosedHere)) return;
  if (sending_.try_lock()) {
    send_goodbye();
    sending_.unlock();
  }
  shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace penstock::net
