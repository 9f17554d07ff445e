#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "penstock/net/key.h"

struct ssl_st;
struct bio_st;

namespace penstock::net {

// One end of an encrypted line, without its socket: TLS 1.3 by OpenSSL. There are no certificates:
// both ends have a key of this line (a pre-shared one), and agree on one of the moment besides, so
// that who learns the first later cannot read what was said before. What was changed, left out,
// repeated or moved on its way is an error.
//
// Threads: one at a time seals and takes what is to be sent, while another one receives and reads.
class Tls {
 public:
  enum class Side { kClient, kServer };

  // `peer` is for error texts. Error kSystem.
  Tls(Side side, const Key& key, std::string peer);
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;
  ~Tls();

  // Moves TLS' own handshake on, first with nothing received. True: it is complete, once what is
  // to be sent was sent. Error kDataLoss: no such end has the key, or what came was changed.
  bool shake();

  // REQUIRED for these two: complete.
  void seal(std::span<const std::byte> plain);
  // The next that is sealed has another key, as it has now and then by itself.
  void renew_key();
  // What is there of what was sealed, up to into.size() bytes; 0: more has to come. Error
  // kDataLoss.
  size_t read(std::span<std::byte> into);

  // Appends what is to be sent, which then is no longer kept here.
  void take_outgoing(std::vector<std::byte>& out);
  // Where what comes belongs, and that so many bytes of it came.
  std::span<std::byte> room();
  void received(size_t bytes);
  // Whether anything came that nobody has read.
  bool pending() const;

 private:
  struct Callbacks;
  [[noreturn]] void fail(const char* what) const;

  const std::string peer_;
  mutable std::mutex mutex_;  // of all that follows, but for the bytes of room()
  Key key_;
  ssl_st* ssl_ = nullptr;
  uint64_t records_ = 0;  // sealed with the newest key
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
  size_t begin_ = 0, end_ = 0;  // of what came and OpenSSL has not taken
};

}  // namespace penstock::net
