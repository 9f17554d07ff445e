#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <span>

#include "penstock/base/os.h"

namespace penstock {

// Bytes over a Unix socket, and a descriptor beside them. Threads: any; one at a time at an end.
// `flags` are sendmsg()'s and recvmsg()'s.

// What sendmsg() gives, with its errno; begun again after a signal, and without SIGPIPE.
// `descriptor` -1: none. The caller keeps its own.
ssize_t send_message(int fd, std::span<const std::byte> bytes, int descriptor, int flags);
// The same from several places, at most IOV_MAX.
ssize_t send_message(int fd, std::span<const iovec> parts, int descriptor, int flags);

// What recvmsg() gives, with its errno; begun again after a signal. A descriptor that came, which
// is closed on exec, takes the place of `descriptor`.
ssize_t receive_message(int fd, std::span<std::byte> bytes, os::Fd& descriptor, int flags);

}  // namespace penstock
