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
#include "penstock/base/fork_aware.h"
#include "penstock/base/os.h"

namespace penstock::net {

class Tls;

// Limits of an established connection.
struct ConnectionLimits {
  // The longest time in which send() and receive_body() may move no byte. After that the connection
  // is closed and the Error is kTimeout. Seconds, more than 0; infinity: no limit.
  double stall_timeout_s = 60;
  // A message with a longer body is refused, and the connection closed.
  uint64_t max_body_bytes = uint64_t{1} << 40;
  // Called several times a second by blocking calls, connect() included. May throw, which ends the
  // call and closes the connection: the rest of a half-sent message would be misread.
  std::function<void()> while_waiting = {};
};

// Options that both ends of a TCP connection must share. Unix sockets need neither: the kernel
// says which user the other process belongs to.
struct LinkOptions : ConnectionLimits {
  // At least 16 bytes that cannot be guessed. Each end proves to the other that it knows the
  // secret before anything else is read. Empty: host_secret(), which only processes of this user
  // on this host know.
  std::string secret;
  // Whether all messages are encrypted and authenticated. nullopt: if the other end is on another
  // host, or asks for it. The ends must not contradict each other. Without encryption, the secret
  // keeps out other hosts, but not a host that can read and change the network's packets.
  std::optional<bool> encrypt = std::nullopt;
};

struct ConnectOptions : LinkOptions {
  // For name resolution, connection and handshake together.
  double timeout_s = 10;
};

// The header of a message on the wire; the head and the body follow. Numbers are little-endian.
struct FrameHeader {
  static constexpr uint32_t kMessage = 0x31465350;  // "PSF1"
  static constexpr uint32_t kGoodbye = 0x30465350;  // "PSF0": an orderly end; no head, no body

  uint32_t kind = kMessage;
  uint16_t flags = 0;
  uint16_t reserved = 0;  // zero
  uint32_t head_bytes = 0;
  uint32_t reserved_too = 0;  // zero
  uint64_t body_bytes = 0;

  // A descriptor comes with the header's first byte.
  static constexpr uint16_t kDescriptor = 1;
};
static_assert(sizeof(FrameHeader) == 24);

inline constexpr size_t kMaxHeadBytes = 64 * 1024;

// A received message, up to its body.
struct Received {
  std::vector<std::byte> head;
  uint64_t body_bytes = 0;
  os::Fd descriptor;  // if one was sent
};

// One end of a message connection between two processes, over TCP or a Unix socket. A message is a
// small head and a body of any length. Messages are neither repeated nor acknowledged: after an
// Error a message may or may not have arrived, and the two ends must find out over a new
// connection.
//
// Threads: any number may send, one after the other; one at a time receives; close() may be called
// by any, and wakes both. Destroy when no thread uses the connection any more. In a forked child
// the parent's connections are closed; the parent's copies stay open.
//
// Errors of all functions: kClosed (the other end or the network disconnected, close() was called
// here, or the connection is the parent process's), kTimeout, kDataLoss (invalid data arrived; the
// connection is closed), kSystem.
class Connection final : private ForkAware {
 public:
  ~Connection();

  // Sends without copying the body. Blocks until the system has taken all bytes. head: up to
  // kMaxHeadBytes bytes. descriptor: sent with the message if not -1, for local connections only;
  // the caller keeps its own copy. Also kInvalidArgument, with nothing sent.
  void send(std::span<const std::byte> head, std::span<const std::span<const std::byte>> body = {},
            int descriptor = -1);

  // The next message, up to its body. The unread rest of the previous body is skipped. nullopt: the
  // other end closed the connection in an orderly way. kTimeout: nothing is lost, call again.
  std::optional<Received> receive(double timeout_s);

  // The next into.size() bytes of the body. REQUIRED: into.size() <= body_left().
  void receive_body(std::span<std::byte> into);
  uint64_t body_left() const { return body_left_; }  // for the receiving thread

  // The other end sees an orderly end, unless another thread is in send() or the socket's send
  // buffer is full. Never blocks.
  void close() noexcept;
  bool closed() const { return closed_.load(std::memory_order_acquire) != kOpen; }
  // True if nothing is waiting to be received: neither a message nor the end. Checks, in about a
  // microsecond, that the other end is still connected while no message is expected.
  bool idle() const;
  // The other end is on the same host, over a Unix socket: descriptors can be sent.
  bool local() const { return local_; }
  // The other end, for messages: "tcp://127.0.0.1:40312", "process 4711".
  const std::string& peer() const { return peer_; }

  // For connect() and Listener: takes ownership of a connected socket. Error kSystem.
  Connection(os::Fd socket, bool local, std::string peer, const ConnectionLimits& limits,
             std::unique_ptr<Tls> tls = nullptr);

 private:
  static constexpr uint64_t kCallbackNs = 100'000'000;
  enum : int { kOpen, kClosedHere, kDisconnected, kForked };

  void after_fork_in_child() noexcept override;
  [[noreturn]] void fail_disconnected(int error_number, const char* what);
  [[noreturn]] void fail_invalid(const std::string& why);
  void disconnect() noexcept;
  void send_goodbye() noexcept;  // under sending_
  void restart_callback_timer() { next_callback_ns_ = now_ns() + kCallbackNs; }
  void on_no_progress(const Deadline& stalled, const char* what);
  void call_while_waiting();
  void check_open() const;
  void check_header();
  void send_plain(std::span<const std::byte> header, std::span<const std::byte> head,
                  std::span<const std::span<const std::byte>> body, int descriptor);
  void send_encrypted(std::span<const std::byte> header, std::span<const std::byte> head,
                      std::span<const std::span<const std::byte>> body);
  // As recv(), with its flags; encrypted connections ignore MSG_WAITALL.
  ssize_t receive_some(std::span<std::byte> into, int flags);
  ssize_t receive_encrypted(std::span<std::byte> into, int flags);
  // A header or a head, which several calls may complete. False: the deadline passed first.
  bool read_unit(std::span<std::byte> into, bool takes_descriptor, const Deadline& deadline);
  void read_all(std::span<std::byte> into);

  os::Fd socket_;
  const bool local_;
  const std::string peer_;
  const ConnectionLimits limits_;
  std::atomic<int> closed_{kOpen};
  std::atomic<uint64_t> next_callback_ns_{0};
  std::mutex sending_;
  const std::unique_ptr<Tls> tls_;
  std::vector<std::byte> encrypted_out_;  // under sending_

  // State of the receiving thread: a partly received message.
  FrameHeader header_;
  bool has_header_ = false;
  std::vector<std::byte> head_;
  size_t got_ = 0;  // of the header, or of the head
  os::Fd descriptor_;
  uint64_t body_left_ = 0;
  bool ended_ = false;
};

// Over TCP, returns once the other end has accepted, which takes a thread in Listener::accept().
// Errors: kInvalidArgument (address, options; the other end has another secret; another host, and
// no secret), kNotFound (no such host, or no listener there), kTimeout, kClosed, kSystem. A Unix
// socket that another user's process serves is kInvalidArgument.
std::unique_ptr<Connection> connect(const std::string& address, const ConnectOptions& options = {});

}  // namespace penstock::net
