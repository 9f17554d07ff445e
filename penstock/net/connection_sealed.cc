// Connection's sending and receiving where the line is encrypted. A message is sealed in units: the
// header, the head if it has bytes, and the body in pieces of Cipher::kPiece, the last one shorter.
// The sizes of units are in the header, which opened before any of them is read.
#include <algorithm>
#include <cstring>

#include "penstock/net/cipher.h"
#include "penstock/net/connection.h"

namespace penstock::net {
namespace {

// So much is sealed before it is sent.
constexpr size_t kBatch = 4 * (Cipher::kPiece + Cipher::kOverhead);

}  // namespace

void Connection::send_sealed(std::span<const std::byte> header, std::span<const std::byte> head,
                             std::span<const std::span<const std::byte>> body) {
  sealed_out_.clear();
  const auto flush = [&] {
    send_plain(sealed_out_, {}, {}, -1);
    sealed_out_.clear();
  };
  const auto seal = [&](std::span<const std::byte> plain) {
    if (plain.empty()) return;
    const size_t at = sealed_out_.size();
    sealed_out_.resize(at + plain.size() + Cipher::kOverhead);
    cipher_->seal(plain, std::span(sealed_out_).subspan(at));
    if (sealed_out_.size() >= kBatch) flush();
  };
  seal(header);
  seal(head);
  std::vector<std::byte> gathered;  // a piece whose bytes lie in several parts
  for (auto part : body) {
    while (!part.empty()) {
      const size_t take = std::min(part.size(), Cipher::kPiece - gathered.size());
      if (take == Cipher::kPiece) {
        seal(part.first(take));
      } else {
        gathered.insert(gathered.end(), part.begin(), part.begin() + static_cast<ptrdiff_t>(take));
        if (gathered.size() == Cipher::kPiece) {
          seal(gathered);
          gathered.clear();
        }
      }
      part = part.subspan(take);
    }
  }
  seal(gathered);
  if (!sealed_out_.empty()) flush();
}

void Connection::read_pieces(std::span<std::byte> into) {
  while (!into.empty()) {
    if (piece_read_ == piece_.size()) {
      // body_left_ counts what nobody has read, and no piece is open: so it counts pieces.
      const size_t size = std::min<uint64_t>(body_left_, Cipher::kPiece);
      sealed_in_.resize(size + Cipher::kOverhead);
      read_all(sealed_in_);
      const bool whole = into.size() >= size;
      if (!whole) piece_.resize(size);
      const auto opened = whole ? into.first(size) : std::span(piece_);
      if (!cipher_->open(sealed_in_, opened)) refuse("it was changed on its way");
      piece_read_ = whole ? piece_.size() : 0;
      if (whole) {
        into = into.subspan(size);
        body_left_ -= size;
        continue;
      }
    }
    const size_t take = std::min(into.size(), piece_.size() - piece_read_);
    std::memcpy(into.data(), piece_.data() + piece_read_, take);
    piece_read_ += take;
    into = into.subspan(take);
    body_left_ -= take;
  }
}

}  // namespace penstock::net
