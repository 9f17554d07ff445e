#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/net/tls_client.h"
#include "penstock/online/mqtt_packets.h"

namespace penstock::online::mqtt {

inline Error closed(const std::string& why) { return Error(Code::kClosed, "MQTT", why); }

// A client's connection to a broker, with TLS or without: the bytes that arrived, cut into packets,
// and the packets to send. Knows nothing of what packets mean.
//
// Closed until open(), and after close(). Threads: one at a time.
class Wire {
 public:
  struct Broker {
    std::string host;
    uint16_t port;
    std::optional<net::TlsClientOptions> tls;

    std::string endpoint() const;  // "host:port"
  };

  // `wake`: an eventfd that ends a wait() and is reset by it.
  explicit Wire(int wake) : wake_(wake) {}

  // Connects within about `patience_s`, and forgets the bytes of the connection before. Errors:
  // kNotFound (refused), kSystem, kClosed (no TLS handshake in time, or `stopping`), those of
  // net::TlsClient.
  void open(const Broker& broker, double patience_s, const std::atomic<bool>& stopping);
  void close();

  // Packets are appended here, and sent by wait().
  Bytes& out() { return out_; }
  size_t unsent_bytes() const { return out_.size() - out_sent_; }
  // The time at which bytes were sent last, or the connection was opened.
  uint64_t last_sent_ns() const { return last_sent_ns_; }

  // Waits for at most `timeout_ms`: for a wake-up, until `unsent_bytes()` can be sent, and with
  // `readable` until bytes have arrived. Sends what can be sent. Whether this call has sent the
  // last of out(). On a closed connection it waits for a wake-up alone. Error kClosed.
  bool wait(bool readable, int64_t timeout_ms);
  // Bytes have arrived that wait() does not see, because they are decrypted already.
  bool pending() const { return tls_ != nullptr && tls_->pending(); }

  // Reads what has arrived, without waiting. Error kClosed.
  void read();
  // The first packet of what was read; nullopt: it has not arrived as a whole. Its body is valid
  // until read(). Errors as of next_frame().
  std::optional<Frame> front(size_t max_bytes) const;
  void pop(const Frame& frame) { in_begin_ += frame.bytes; }

 private:
  void connect(const Broker& broker, double patience_s, const std::atomic<bool>& stopping);
  bool send();

  const int wake_;
  os::Fd socket_;
  std::unique_ptr<net::TlsClient> tls_;
  bool tls_wants_write_ = false;
  Bytes in_;
  size_t in_begin_ = 0, in_end_ = 0;  // read, and not popped
  Bytes out_;
  size_t out_sent_ = 0;
  uint64_t last_sent_ns_ = 0;
};

}  // namespace penstock::online::mqtt
