#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "penstock/net/cipher.h"

namespace penstock::net {

// What two ends say over TCP before the first message, so that each knows that the other has the
// same secret. Three messages of fixed sizes, little-endian; nothing is allocated for them:
//
//   server: ServerHello   magic, version, what it wants, a nonce, a public key of the moment
//   client: ClientHello   the same, the header of its encrypted stream, and its proof
//   server: Verdict       yes or no; with a yes, the header of its encrypted stream and its proof
//
// A proof is BLAKE2b keyed by the secret over the sender's role and all that was said before it, so
// that neither a proof of another time nor the other end's own can be shown again. The server shows
// its own only to who has shown one. Encrypted lines have keys from X25519 between the public
// keys of the moment, bound to the secret and to both hellos: who learns the secret later cannot
// read what was said before.
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
    return std::span(out_).subspan(sent_, end_ - sent_);
  }
  void sent(size_t bytes) { sent_ += bytes; }

  // Where the next bytes from the other end belong (never more than it may send), and that so many
  // have come. Errors: kInvalidArgument (other secrets, versions or wishes), kDataLoss (no such
  // message can be).
  std::span<std::byte> incoming() { return std::span(in_).subspan(got_, want_ - got_); }
  void received(size_t bytes);

  // Both have proved it and everything is sent. refused(): so is the bad news; hang up.
  bool complete() const { return state_ == State::kComplete && sent_ == end_; }
  bool refused() const { return state_ == State::kRefused && sent_ == end_; }

  // REQUIRED: complete(). Empty: the line is not encrypted.
  std::unique_ptr<Cipher> take_cipher() { return std::move(cipher_); }

 private:
  struct Hello;
  struct ServerHello;
  struct ClientHello;
  struct Verdict;
  enum class State {
    kServerHello,  // the client waits for it
    kClientHello,  // the server waits for it
    kVerdict,      // the client waits for it
    kComplete,
    kRefused,  // the server's, and why is known
  };
  static constexpr size_t kMostBytes = 256;

  Hello own_hello() const;
  void take_server_hello();
  void take_client_hello();
  void take_verdict();
  void answer(bool welcome);
  void prove(const char* role, std::span<unsigned char, 32> proof) const;
  bool proves(const char* role, std::span<const unsigned char, 32> proof) const;
  bool derive_keys(const unsigned char* other_public);
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
  Key secret_;   // of a fixed length, from the words of the secret
  Key private_;  // of the moment
  Key send_key_, receive_key_;
  std::unique_ptr<Cipher> cipher_;
  std::array<std::byte, 2 * kMostBytes> said_{};  // the transcript
  size_t said_bytes_ = 0;
  std::array<std::byte, kMostBytes> out_{}, in_{};
  size_t sent_ = 0, end_ = 0, got_ = 0, want_ = 0;
};

}  // namespace penstock::net
