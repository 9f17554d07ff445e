#pragma once

#include <sodium.h>

#include <array>
#include <cstddef>
#include <span>

namespace penstock::net {

// 32 bytes that nobody else may see; wiped in the end.
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

// Both directions of an encrypted line, each a libsodium secretstream (XChaCha20-Poly1305): what
// was changed, left out, repeated or moved does not open. Threads: one seals, one opens.
class Cipher {
 public:
  static constexpr size_t kOverhead = crypto_secretstream_xchacha20poly1305_ABYTES;
  static constexpr size_t kHeaderBytes = crypto_secretstream_xchacha20poly1305_HEADERBYTES;
  // The most that is sealed at once, but for a message's head: bodies go in pieces of this.
  static constexpr size_t kPiece = 64 * 1024;

  Cipher() = default;
  Cipher(const Cipher&) = delete;
  Cipher& operator=(const Cipher&) = delete;
  ~Cipher();

  // `header` goes to the other end, whose start_opening() takes it.
  void start_sealing(const Key& key, std::span<unsigned char, kHeaderBytes> header);
  // False: no header can be so.
  bool start_opening(const Key& key, std::span<const unsigned char, kHeaderBytes> header);

  // into.size() == plain.size() + kOverhead; not in the same memory.
  void seal(std::span<const std::byte> plain, std::span<std::byte> into);
  // into.size() + kOverhead == sealed.size(). False: it is not what the other end sealed next.
  bool open(std::span<const std::byte> sealed, std::span<std::byte> into);

 private:
  crypto_secretstream_xchacha20poly1305_state sealing_{};
  crypto_secretstream_xchacha20poly1305_state opening_{};
};

}  // namespace penstock::net
