#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/net/connection.h"
#include "penstock/net/tls.h"

namespace penstock::net {

// The handshake at the start of a TCP connection: each end proves to the other that it knows the
// secret. Three messages of fixed sizes, little-endian; no memory is allocated for them:
//
// - server: ServerHello (magic, version, flags, a nonce)
// - client: ClientHello (the same of its own, and its proof)
// - server: ServerReply (accepted or refused; if accepted, its proof)
//
// A proof is BLAKE2b, keyed by the secret, over the sender's role and the transcript of all
// previous messages. So neither an older proof nor the other end's own can be replayed. The server
// sends its proof only after the client's was verified. The client decides from both hellos whether
// TLS follows, and the flags of its own say so. OpenSSL parses nothing from unauthenticated peers.
// The key of TLS is derived from the secret and the transcript.
//
// This class is one end without its socket: it has bytes to send and says how many bytes it expects
// next. Threads: not synchronised.
class Handshake {
 public:
  enum class Side { kClient, kServer };
  struct Options {
    std::string secret;
    bool is_host_secret = false;       // the user gave none: host_secret()
    bool requires_encryption = false;  // the handshake fails without
    bool allows_encryption = true;
  };

  // The fewest bytes of a secret. Long enough that guessing is hopeless: a client shows its proof
  // to whatever process listens at the address, which can try guesses offline.
  static constexpr size_t kMinSecretBytes = 16;

  // Error kInvalidArgument: a secret that was given is too short.
  static void check(const std::string& secret);
  // The options of one connection. Errors: those of check() and host_secret(); kInvalidArgument: no
  // secret for another host.
  static Options options(const LinkOptions& link, bool same_host, const std::string& peer);

  // `peer` is for error texts. Error kInvalidArgument: see check().
  Handshake(Side side, const Options& options, std::string peer);
  ~Handshake();

  // The bytes to send now, before anything is read; and how many of them were sent.
  std::span<const std::byte> outgoing() const {
    if (sent_ < end_) return std::span(out_).subspan(sent_, end_ - sent_);
    return std::span(tls_out_).subspan(tls_sent_);
  }
  void sent(size_t bytes) { (sent_ < end_ ? sent_ : tls_sent_) += bytes; }

  // Space for the next received bytes (before TLS, no more than the peer may send now); and how
  // many of them have arrived. Errors: kInvalidArgument (different secret, version or options),
  // kDataLoss (malformed message), kSystem (no TLS).
  std::span<std::byte> incoming() {
    return state_ == State::kTls ? tls_->receive_buffer()
                                 : std::span(in_).subspan(got_, expected_ - got_);
  }
  void received(size_t bytes);

  // Server: the client has sent nothing yet.
  bool peer_silent() const { return state_ == State::kClientHello && got_ == 0; }

  // complete(): both ends are authenticated and everything is sent. refused(): the refusal is sent,
  // and the connection should be closed.
  bool complete() const { return state_ == State::kComplete && outgoing().empty(); }
  bool refused() const { return state_ == State::kRefused && outgoing().empty(); }
  // REQUIRED: complete(). Empty: the connection is not encrypted. The Tls holds the bytes that
  // arrived after the handshake.
  std::unique_ptr<Tls> take_tls() { return std::move(tls_); }

 private:
  struct Hello;
  struct ServerHello;
  struct ClientHello;
  struct ServerReply;
  enum class State {
    kServerHello,  // the client waits for it
    kClientHello,  // the server waits for it
    kServerReply,  // the client waits for it
    kTls,          // the TLS handshake, if the connection is encrypted
    kComplete,
    kRefused,  // the server refused the client
  };
  static constexpr size_t kMaxMessageBytes = 128;

  Hello own_hello() const;
  bool decide_encryption(uint16_t theirs) const;
  void take_server_hello();
  void take_client_hello();
  void take_server_reply();
  void reply(bool accept);
  void compute_proof(const char* role, std::span<unsigned char, 32> proof) const;
  bool verify_proof(const char* role, std::span<const unsigned char, 32> proof) const;
  void on_authenticated();
  void advance_tls();
  void append_to_transcript(const void* bytes, size_t count);
  template <typename Message>
  void queue(const Message& message);
  template <typename Message>
  Message parse() const;

  const Side side_;
  const bool is_host_secret_;
  const bool requires_encryption_, allows_encryption_;
  const std::string peer_;
  bool encrypt_ = false;  // as the client's hello says
  State state_;
  Key secret_;  // a hash of the secret, of a fixed length
  std::array<std::byte, 2 * kMaxMessageBytes> transcript_{};
  size_t transcript_bytes_ = 0;
  std::array<std::byte, kMaxMessageBytes> out_{}, in_{};
  size_t sent_ = 0, end_ = 0, got_ = 0, expected_ = 0;
  std::unique_ptr<Tls> tls_;
  std::vector<std::byte> tls_out_;  // outgoing bytes of TLS
  size_t tls_sent_ = 0;
};

enum class HandshakeStatus {
  kWantsRead,   // call again when the socket is readable
  kWantsWrite,  // call again when the socket is writable
  kComplete,
  kRefused,
};

// Advances a handshake over a non-blocking socket: sends and receives as much as possible now.
// Errors: the handshake's, kClosed (the peer disconnected).
HandshakeStatus advance_handshake(int fd, Handshake& handshake, const std::string& peer);

}  // namespace penstock::net
