// Any bytes on a connection, in pieces of any sizes: messages within their limits, an orderly end,
// or an error; never more than came.
//
//   bytes  0: the size of a piece   1: how a body is taken   2 on: what comes
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "fuzz/require.h"
#include "penstock/base/error.h"
#include "penstock/net/connection.h"
#include "penstock/net/tls.h"

using namespace penstock;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const size_t piece = 1 + data[0] + size / 64;  // each takes a part of the send buffer
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  os::Fd there(ends[1]);
  net::ConnectionLimits limits;
  limits.stall_timeout_s = 5;
  limits.max_body_bytes = 2000;
  net::Connection connection(os::Fd(ends[0]), true, "a stranger", limits);
  size_t came = 0;
  try {
    for (size_t at = 2; at < size; at += piece) {
      const size_t count = std::min(piece, size - at);
      if (::send(there.get(), data + at, count, MSG_NOSIGNAL) < 0) break;
    }
    ::shutdown(there.get(), SHUT_WR);
    while (auto message = connection.receive(5)) {
      REQUIRE(message->head.size() <= net::kMaxHeadBytes);
      REQUIRE(message->body_bytes <= limits.max_body_bytes);
      REQUIRE(!message->descriptor);
      came += sizeof(net::FrameHeader) + message->head.size();
      std::vector<std::byte> body(message->body_bytes);
      if (data[1] % 3 == 0) continue;  // the next receive() skips it
      const size_t part = data[1] % 3 == 1 ? body.size() : body.size() / 2;
      connection.receive_body(std::span(body).first(part));
      came += part;
      REQUIRE(connection.body_left() == body.size() - part);
    }
  } catch (const Error& error) {
    REQUIRE(error.code() == Code::kDataLoss || error.code() == Code::kClosed);
    REQUIRE(!std::string(error.what()).empty());
  }
  REQUIRE(came <= size - 2);
  return 0;
}
