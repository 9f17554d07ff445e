// Any bytes from a peer at any point of a handshake, in pieces of any sizes: either end rejects
// them or waits for more, and nobody without the secret is accepted.
//
//   byte 0: bit 0 the server is attacked, else the client; bit 1 with encryption; bit 2 the rest is
//   a mask for the honest peer's messages, else it replaces them   byte 1: how many of the peer's
//   messages come unchanged first   byte 2: the size of a piece   then the bytes
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "fuzz/require.h"
#include "penstock/base/error.h"
#include "penstock/net/handshake.h"

using namespace penstock;
using net::Handshake;

namespace {

std::vector<std::byte> sent_by(Handshake& end) {
  const auto out = end.outgoing();
  std::vector<std::byte> bytes(out.begin(), out.end());
  end.sent(bytes.size());
  return bytes;
}

// False: it rejected the bytes.
bool give(Handshake& end, std::span<const std::byte> bytes, size_t piece) {
  try {
    while (!bytes.empty() && !end.complete() && !end.refused()) {
      const auto into = end.incoming();
      if (into.empty()) return true;
      const size_t count = std::min({piece, bytes.size(), into.size()});
      std::ranges::copy(bytes.first(count), into.begin());
      end.received(count);
      bytes = bytes.subspan(count);
    }
  } catch (const Error& error) {
    REQUIRE(error.code() == Code::kDataLoss || error.code() == Code::kInvalidArgument);
    REQUIRE(!std::string(error.what()).empty());
    return false;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  const bool server_attacked = data[0] & 1, encrypt = data[0] & 2, masks = data[0] & 4;
  size_t honest = data[1] % 5;
  const size_t piece = 1 + data[2];
  auto rest = std::as_bytes(std::span(data + 3, size - 3));
  Handshake::Options options;
  options.secret = "the secret of a fuzzer";
  options.requires_encryption = encrypt;
  Handshake server(Handshake::Side::kServer, options, "client");
  Handshake client(Handshake::Side::kClient, options, "server");
  Handshake& victim = server_attacked ? server : client;
  bool proof_changed = false;  // a message before TLS
  size_t peers_messages = 0;
  for (Handshake* from = &server;; from = from == &server ? &client : &server) {
    std::vector<std::byte> said = sent_by(*from);
    if (said.empty()) break;
    Handshake& to = from == &server ? client : server;
    if (&to == &victim && honest > 0) {
      --honest;
    } else if (&to == &victim) {
      const std::vector<std::byte> original = said;
      if (masks) {
        const size_t count = std::min(said.size(), rest.size());
        for (size_t i = 0; i < count; ++i) said[i] ^= rest[i];
        rest = rest.subspan(count);
      } else {
        said.assign(rest.begin(), rest.end());
        rest = {};
      }
      // The server's two messages, or the client's one.
      if (peers_messages < (server_attacked ? 1u : 2u)) proof_changed |= said != original;
    }
    peers_messages += &to == &victim;
    if (!give(to, said, piece)) return 0;
  }
  if (proof_changed) REQUIRE(!victim.complete());
  return 0;
}
