#pragma once

#include <sodium.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

struct ssl_st;
struct bio_st;

namespace penstock::net {

// A secret of 32 bytes, wiped when destroyed.
class Key {
 public:
  static constexpr size_t kBytes = 32;

  Key() = default;
  Key(const Key&) = default;
  Key& operator=(const Key&) = default;
  ~Key() { sodium_memzero(bytes_.data(), bytes_.size()); }

  unsigned char* data() { return bytes_.data(); }
  const unsigned char* data() const { return bytes_.data(); }

 private:
  std::array<unsigned char, kBytes> bytes_{};
};

// One end of an encrypted connection, without its socket: TLS 1.3 by OpenSSL. There are no
// certificates: both ends have the pre-shared key of this connection. They also agree on an
// ephemeral key, so the pre-shared key alone does not decrypt recorded traffic later. Data that was
// changed, left out, repeated or moved in transit is an error.
//
// Threads: one at a time encrypts and takes outgoing bytes, while another one receives and reads.
class Tls {
 public:
  enum class Side { kClient, kServer };

  // `peer` is for error texts. Error kSystem.
  Tls(Side side, const Key& key, std::string peer);
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;
  ~Tls();

  // Advances the TLS handshake; call once before anything was received, then after each received().
  // True: complete, once the outgoing bytes are sent. Error kDataLoss: the other end does not have
  // the key, or the bytes were changed in transit.
  bool handshake();

  // REQUIRED for encrypt() and renew_key(): the handshake is complete.
  void encrypt(std::span<const std::byte> plain);
  // The next encrypt() switches to a new key, as happens by itself from time to time.
  void renew_key();

  // Decrypts up to into.size() bytes; 0: more input is needed. Error kDataLoss.
  size_t read(std::span<std::byte> into);

  // Appends the bytes to send to `out` and forgets them.
  void take_outgoing(std::vector<std::byte>& out);
  // Free space for received bytes, and how many of them have arrived.
  std::span<std::byte> receive_buffer();
  void received(size_t bytes);
  // True if received bytes are waiting to be read.
  bool pending() const;

 private:
  struct Callbacks;

  [[noreturn]] void fail(const char* what) const;

  const std::string peer_;
  mutable std::mutex mutex_;  // guards everything below, but for the bytes of receive_buffer()
  Key key_;
  ssl_st* ssl_ = nullptr;
  uint64_t records_ = 0;  // encrypted with the newest key
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
  size_t begin_ = 0, end_ = 0;  // received bytes in in_ that OpenSSL has not taken yet
};

}  // namespace penstock::net
