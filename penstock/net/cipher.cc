#include "penstock/net/cipher.h"

namespace penstock::net {
namespace {

const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}
unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

}  // namespace

Cipher::~Cipher() {
  sodium_memzero(&sealing_, sizeof(sealing_));
  sodium_memzero(&opening_, sizeof(opening_));
}

void Cipher::start_sealing(const Key& key, std::span<unsigned char, kHeaderBytes> header) {
  crypto_secretstream_xchacha20poly1305_init_push(&sealing_, header.data(), key.data());
}

bool Cipher::start_opening(const Key& key, std::span<const unsigned char, kHeaderBytes> header) {
  return crypto_secretstream_xchacha20poly1305_init_pull(&opening_, header.data(), key.data()) == 0;
}

void Cipher::seal(std::span<const std::byte> plain, std::span<std::byte> into) {
  crypto_secretstream_xchacha20poly1305_push(&sealing_, raw(into.data()), nullptr,
                                             raw(plain.data()), plain.size(), nullptr, 0,
                                             crypto_secretstream_xchacha20poly1305_TAG_MESSAGE);
}

bool Cipher::open(std::span<const std::byte> sealed, std::span<std::byte> into) {
  unsigned char tag;
  return crypto_secretstream_xchacha20poly1305_pull(&opening_, raw(into.data()), nullptr, &tag,
                                                    raw(sealed.data()), sealed.size(), nullptr,
                                                    0) == 0 &&
         tag == crypto_secretstream_xchacha20poly1305_TAG_MESSAGE;
}

}  // namespace penstock::net
