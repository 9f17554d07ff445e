#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "penstock/base/os.h"

namespace penstock {

// Messages between a worker process and the consumer's process over a socket pair, in order, some
// with a descriptor. Results travel here only if neither the ring nor an arena has space for them.
// Blocking; one reader and one writer per end. SIGPIPE is not raised.
//
// A worker sends:
//   - kArena: the descriptor of its arena; `number` is the arena's number.
//   - kSpace: an entry needs memory.
//   - kPayload: `bytes` bytes of a result for task `number` (TicketRing::number_of) follow.
//   - kFailed: the worker cannot start; an encoded exception follows.
//   - kAddress: a worker of consumers on other hosts listens; its address follows.
// The consumer sends:
//   - kUpdate: the descriptor of the plan's changes; `number` is the new version.
enum class LinkMessage : uint32_t { kArena, kSpace, kPayload, kFailed, kUpdate, kAddress };

struct LinkHeader {
  LinkMessage message;
  uint32_t detail = 0;
  uint64_t number = 0;
  uint64_t bytes = 0;  // that follow
};

// A pair of connected descriptors, closed on exec.
std::pair<os::Fd, os::Fd> link_pair();

// False: the other end is closed.
bool link_send(int fd, const LinkHeader& header, std::span<const std::byte> bytes = {},
               int descriptor = -1);
// Never waits. kFull: the other end has not read for long, or too many descriptors are in flight.
enum class LinkSent { kSent, kFull, kClosed };
LinkSent link_try_send(int fd, const LinkHeader& header, int descriptor = -1);
bool link_receive(int fd, LinkHeader& header, os::Fd& descriptor);
// `process`: a pidfd, or -1. Once that process ended, reads what it had sent and waits for no more,
// because a child of that process may hold the other end open.
bool link_read(int fd, std::span<std::byte> bytes, int process = -1);
// A message can be read without waiting.
bool link_pending(int fd);

}  // namespace penstock
