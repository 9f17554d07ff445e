#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/net/key.h"
#include "penstock/net/tls.h"

namespace penstock::net {

// What two ends say over TCP before the first message, so that each knows that the other has the
// same secret. Three messages of fixed sizes, little-endian; nothing is allocated for them:
//
//   server: ServerHello   magic, version, what it wants, a nonce
//   client: ClientHello   the same, and its proof
//   server: Verdict       yes or no; with a yes, its proof
//
// A proof is BLAKE2b keyed by the secret over the sender's role and all that was said before it, so
// that neither a proof of another time nor the other end's own can be shown again. The server shows
// its own only to who has shown one. If both want it, TLS follows, so that OpenSSL sees nothing of
// who has not proved it; its key is of the secret and of all that was said before.
//
// This class is one end without its socket: it says which bytes to send and how many it wants next.
// Threads: none of its own, one at a time.
class Handshake {
 public:
  enum class Side { kClient, kServer };

  // The fewest bytes of a secret: more than anybody guesses, for a client shows its proof to
  // whoever listens at the address.
  static constexpr size_t kLeastSecret = 16;
  // Error kInvalidArgument: a secret that is too short, or encryption without one.
  static void check(const std::string& secret, bool encrypt);

  // `peer` is for error texts.
  Handshake(Side side, const std::string& secret, bool encrypt, std::string peer);
  ~Handshake();

  // What is to be sent now, before anything is read, and that so much of it was.
  std::span<const std::byte> outgoing() const {
    if (sent_ < end_) return std::span(out_).subspan(sent_, end_ - sent_);
    return std::span(sealed_).subspan(sealed_sent_);
  }
  void sent(size_t bytes) { (sent_ < end_ ? sent_ : sealed_sent_) += bytes; }

  // Where the next bytes from the other end belong (never more than it may send, before TLS), and
  // that so many have come. Errors: kInvalidArgument (other secrets, versions or wishes), kDataLoss
  // (no such message can be), kSystem (no TLS).
  std::span<std::byte> incoming() {
    return state_ == State::kTls ? tls_->room() : std::span(in_).subspan(got_, want_ - got_);
  }
  void received(size_t bytes);

  // Both have proved it and everything is sent. refused(): so is the bad news; hang up.
  bool complete() const { return state_ == State::kComplete && outgoing().empty(); }
  bool refused() const { return state_ == State::kRefused && outgoing().empty(); }

  // REQUIRED: complete(). Empty: the line is not encrypted. What came behind the handshake is in
  // it.
  std::unique_ptr<Tls> take_tls() { return std::move(tls_); }

 private:
  struct Hello;
  struct ServerHello;
  struct ClientHello;
  struct Verdict;
  enum class State {
    kServerHello,  // the client waits for it
    kClientHello,  // the server waits for it
    kVerdict,      // the client waits for it
    kTls,          // both shake hands once more, if they encrypt
    kComplete,
    kRefused,  // the server's, and why is known
  };
  static constexpr size_t kMostBytes = 128;

  Hello own_hello() const;
  void take_server_hello();
  void take_client_hello();
  void take_verdict();
  void answer(bool welcome);
  void prove(const char* role, std::span<unsigned char, 32> proof) const;
  bool proves(const char* role, std::span<const unsigned char, 32> proof) const;
  void known();
  void shake();
  void remember(const void* bytes, size_t count);
  template <typename Message>
  void say(const Message& message);
  template <typename Message>
  Message heard() const;

  const Side side_;
  const bool has_secret_;
  const bool encrypt_;
  const std::string peer_;
  State state_;
  Key secret_;                                    // of a fixed length, from the words of the secret
  std::array<std::byte, 2 * kMostBytes> said_{};  // the transcript
  size_t said_bytes_ = 0;
  std::array<std::byte, kMostBytes> out_{}, in_{};
  size_t sent_ = 0, end_ = 0, got_ = 0, want_ = 0;
  std::unique_ptr<Tls> tls_;
  std::vector<std::byte> sealed_;  // that TLS says
  size_t sealed_sent_ = 0;
};

}  // namespace penstock::net
