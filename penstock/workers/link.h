#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "penstock/base/os.h"

namespace penstock {

// What little a worker process and the consumer's process say to each other beside the board:
// messages over a socket pair, in order, with a descriptor if need be. Never payload that the
// board and the arenas can carry. Blocking; one reader and one writer per end. SIGPIPE is not
// raised.
enum class LinkMessage : uint32_t {
  kArena,    // worker: the descriptor of its arena; `number` is the arena's number
  kRoom,     // worker: a post needs room
  kPayload,  // worker: no room in the arena; `bytes` bytes of result follow for unit `number`
             // (Board)
  kFailed,   // worker: cannot start; an encoded exception follows
  kUpdate,   // consumer: the descriptor of the plan's changes; `number` is the new version
};

struct LinkHeader {
  LinkMessage message;
  uint32_t detail = 0;
  uint64_t number = 0;
  uint64_t bytes = 0;  // that follow
};

// A pair of connected descriptors, closed on exec.
std::pair<os::Fd, os::Fd> link_pair();

// False: the other end is gone.
bool link_send(int fd, const LinkHeader& header, std::span<const std::byte> bytes = {},
               int descriptor = -1);
// Never waits, where link_send() would: kFull says that the other end has not read for long, or
// that too many descriptors are on their way.
enum class LinkSent { kSent, kFull, kGone };
LinkSent link_try_send(int fd, const LinkHeader& header, int descriptor = -1);
bool link_receive(int fd, LinkHeader& header, os::Fd& descriptor);
// `process` >= 0: a pidfd; what it had sent is still read, but once it ended nobody waits for more
// (a child of it may hold the other end open).
bool link_read(int fd, std::span<std::byte> bytes, int process = -1);
// Something can be read at once.
bool link_pending(int fd);

}  // namespace penstock
