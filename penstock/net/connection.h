#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/base/os.h"
#include "penstock/memory/fork_aware.h"
#include "penstock/net/frame.h"

namespace penstock::net {

class Deadline;
class Tls;

// What an end asks of a connection that stands.
struct LineLimits {
  // The longest that send() and receive_body() go without one byte moving; then the connection is
  // closed and the Error is kTimeout. In seconds, more than 0; infinity: for ever.
  double stall_timeout_s = 60;
  // A message whose body says that it is longer is refused, and the connection closed.
  uint64_t most_body_bytes = uint64_t{1} << 40;
  // Called several times a second by who waits, to connect too. May throw, which ends the call, and
  // the connection with it: half a message is of no use.
  std::function<void()> while_waiting = {};
};

// What both ends of a TCP connection must say alike. Unix sockets do without: there the kernel says
// that the other process is of the same user.
struct LinkOptions : LineLimits {
  // At least 16 bytes that nobody guesses: each end proves to the other that it has them before
  // anything else is read. Empty: none, which is for loopback only.
  std::string secret;
  // What is said is encrypted and cannot be changed on its way. Without, the secret keeps strangers
  // out, but not who can read and change the network's packets. Takes a secret.
  bool encrypt = false;
};

struct ConnectOptions : LinkOptions {
  // For all of it: the host's name, the connection, the handshake.
  double timeout_s = 10;
};

// What receive() gives: a message up to its body.
struct Received {
  std::vector<std::byte> head;
  uint64_t body_bytes = 0;
  os::Fd descriptor;  // if one was sent
};

// One end of a line of messages between two processes, over TCP or a Unix socket. A message is a
// small head and a body of any length. Nothing is repeated or acknowledged here: after an Error a
// message may have arrived or not, which is for the two ends to find out over a new connection.
//
// Threads: any number may send, one after the other; one at a time receives; close() may be called
// by any, and wakes both. Destroy when nobody uses it any more. A forked child has none of its
// parent's connections: there they are closed (and the parent's are not disturbed).
//
// Errors of all functions: kClosed (cut by the other end or the network; closed here; the
// parent's), kTimeout, kDataLoss (what came cannot be; the connection is closed), kSystem.
class Connection final : private ForkAware {
 public:
  ~Connection();

  // Sends from where the bytes lie. Blocks until the system has taken all of them. head: up to
  // kMostHead bytes. descriptor: sent beside it if not -1, for local connections only; the caller
  // keeps its own. Also kInvalidArgument, with nothing sent.
  void send(std::span<const std::byte> head, std::span<const std::span<const std::byte>> body = {},
            int descriptor = -1);

  // The next message up to its body. What nobody read of the body before is skipped. nullopt: the
  // other end closed in good order. kTimeout: nothing is lost, receive() may be called again.
  std::optional<Received> receive(double timeout_s);

  // The next bytes of the body, exactly so many; together at most the message's body_bytes
  // (REQUIRED).
  void receive_body(std::span<std::byte> into);
  uint64_t body_left() const { return body_left_; }  // the receiving thread's

  // The other end learns that this was in good order, unless somebody is in send(), or what was
  // sent fills the line. Never blocks.
  void close() noexcept;
  bool closed() const { return closed_.load(std::memory_order_acquire) != kOpen; }
  // Whether nothing has come that nobody received: no message, and no end either. For who expects
  // nothing and wants to know that the other end is there; takes about a microsecond.
  bool quiet() const;

  // On the same host over a Unix socket: descriptors can be sent.
  bool local() const { return local_; }
  // Who is at the other end, for people: "tcp://127.0.0.1:40312", "process 4711".
  const std::string& peer() const { return peer_; }

  // For connect() and Listener: takes a connected socket over. Error kSystem.
  Connection(os::Fd socket, bool local, std::string peer, const LineLimits& limits,
             std::unique_ptr<Tls> tls = nullptr);

 private:
  static constexpr uint64_t kLookAroundNs = 100'000'000;
  enum : int { kOpen, kClosedHere, kCut, kForked };

  void after_fork_in_child() noexcept override;
  [[noreturn]] void cut(int error_number, const char* what);
  [[noreturn]] void refuse(const std::string& why);
  void break_off() noexcept;
  void say_goodbye() noexcept;  // under sending_
  void begin_waiting() { look_again_ns_ = now_ns() + kLookAroundNs; }
  void moved_nothing(const Deadline& stalled, const char* what);
  void look_around();
  void check_open() const;
  void check_header();
  void send_plain(std::span<const std::byte> header, std::span<const std::byte> head,
                  std::span<const std::span<const std::byte>> body, int descriptor);
  void send_sealed(std::span<const std::byte> header, std::span<const std::byte> head,
                   std::span<const std::span<const std::byte>> body);
  // As recv(), with flags of its own; MSG_WAITALL is a wish.
  ssize_t receive_some(std::span<std::byte> into, int flags);
  ssize_t receive_sealed(std::span<std::byte> into, int flags);
  // A header or a head, which may come in several attempts. False: not before the deadline.
  bool read_unit(std::span<std::byte> into, bool takes_descriptor, const Deadline& deadline);
  void read_all(std::span<std::byte> into);

  os::Fd socket_;
  const bool local_;
  const std::string peer_;
  const LineLimits limits_;
  std::atomic<int> closed_{kOpen};
  std::atomic<uint64_t> look_again_ns_{0};
  std::mutex sending_;

  const std::unique_ptr<Tls> tls_;
  std::vector<std::byte> sealed_out_;  // under sending_

  // The receiving thread's: a message of which only a part has come.
  FrameHeader header_;
  bool has_header_ = false;
  std::vector<std::byte> head_;
  size_t got_ = 0;  // of the header, or of the head
  os::Fd descriptor_;
  uint64_t body_left_ = 0;
  bool ended_ = false;
};

// Over TCP it returns when the other end has accepted: while somebody is in Listener::accept().
// Errors: kInvalidArgument (address, options; the other end has another secret), kNotFound (no such
// host, or nobody listens there), kTimeout, kClosed, kSystem; a Unix socket that another user's
// process serves is kInvalidArgument.
std::unique_ptr<Connection> connect(const std::string& address, const ConnectOptions& options = {});

}  // namespace penstock::net
