#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <span>

#include "penstock/base/os.h"

namespace penstock {

// Sends bytes and a descriptor over a Unix socket. Threads: any; one at a time at each end.
// `flags`: of sendmsg() and recvmsg().

// Like sendmsg(), with its result and errno; retried after a signal, and without SIGPIPE.
// `descriptor` -1: none. The caller keeps its own copy.
ssize_t send_message(int fd, std::span<const std::byte> bytes, int descriptor, int flags);
// The same from several buffers, at most IOV_MAX.
ssize_t send_message(int fd, std::span<const iovec> parts, int descriptor, int flags);

// Like recvmsg(), with its result and errno; retried after a signal. A received descriptor, closed
// on exec, replaces `descriptor`.
ssize_t receive_message(int fd, std::span<std::byte> bytes, os::Fd& descriptor, int flags);

}  // namespace penstock
