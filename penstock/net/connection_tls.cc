// Connection's sending and receiving where the line is encrypted: the bytes of messages, one after
// the other, through TLS.
#include <sys/socket.h>

#include <algorithm>

#include "penstock/base/error.h"
#include "penstock/net/connection.h"
#include "penstock/net/tls.h"

namespace penstock::net {
namespace {

// So much is sealed before it is sent: some of TLS' records.
constexpr size_t kBatch = 256 * 1024;

}  // namespace

void Connection::send_sealed(std::span<const std::byte> header, std::span<const std::byte> head,
                             std::span<const std::span<const std::byte>> body) {
  size_t sealed = 0;
  const auto flush = [&] {
    sealed_out_.clear();
    tls_->take_outgoing(sealed_out_);
    send_plain(sealed_out_, {}, {}, -1);
    sealed = 0;
  };
  const auto seal = [&](std::span<const std::byte> plain) {
    while (!plain.empty()) {
      const auto piece = plain.first(std::min(plain.size(), kBatch - sealed));
      try {
        tls_->seal(piece);
      } catch (const Error&) {
        check_open();  // what came was refused
        break_off();
        throw;
      }
      sealed += piece.size();
      plain = plain.subspan(piece.size());
      if (sealed == kBatch) flush();
    }
  };
  seal(header);
  seal(head);
  for (const auto& part : body) seal(part);
  if (sealed > 0) flush();
}

ssize_t Connection::receive_sealed(std::span<std::byte> into, int flags) {
  try {
    for (;;) {
      if (const size_t got = tls_->read(into); got > 0) return static_cast<ssize_t>(got);
      const auto room = tls_->room();
      const ssize_t came = recv(socket_.get(), room.data(), room.size(), flags);
      if (came <= 0) return came;
      tls_->received(static_cast<size_t>(came));
    }
  } catch (const Error&) {
    break_off();
    throw;
  }
}

}  // namespace penstock::net
