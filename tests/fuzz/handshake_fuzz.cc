// Any bytes from an unknown peer, in pieces of any sizes: either end rejects them or waits for
// more, and no peer without the secret is accepted.
#include <algorithm>
#include <cstdint>
#include <string>

#include "fuzz/require.h"
#include "penstock/base/error.h"
#include "penstock/net/handshake.h"

using namespace penstock;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const bool server = data[0] & 1, encrypt = data[0] & 2;
  const size_t piece = 1 + (data[0] >> 2);
  net::Handshake handshake(server ? net::Handshake::Side::kServer : net::Handshake::Side::kClient,
                           "the secret of a fuzzer", encrypt, "stranger");
  auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  try {
    while (!bytes.empty()) {
      handshake.sent(handshake.outgoing().size());
      const auto into = handshake.incoming();
      if (into.empty()) break;
      const size_t count = std::min({piece, bytes.size(), into.size()});
      std::ranges::copy(bytes.first(count), into.begin());
      handshake.received(count);
      bytes = bytes.subspan(count);
    }
  } catch (const Error& error) {
    REQUIRE(error.code() == Code::kDataLoss || error.code() == Code::kInvalidArgument);
  }
  handshake.sent(handshake.outgoing().size());
  REQUIRE(!handshake.complete());
  return 0;
}
