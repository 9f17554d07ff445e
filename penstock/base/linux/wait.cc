#include <linux/futex.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <ctime>
#include <string>

#include "penstock/base/error.h"
#include "penstock/base/os.h"

namespace penstock::os {

static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free);

Woken futex_wait(std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns, bool shared) {
  timespec timeout{};
  if (timeout_ns >= 0) {
    timeout.tv_sec = static_cast<time_t>(timeout_ns / 1'000'000'000);
    timeout.tv_nsec = static_cast<long>(timeout_ns % 1'000'000'000);
  }
  int operation = shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE;
  if (syscall(SYS_futex, &word, operation, expected, timeout_ns >= 0 ? &timeout : nullptr, nullptr,
              0) == 0) {
    return Woken::kWoken;
  }
  switch (errno) {
    case ETIMEDOUT:
      return Woken::kTimeout;
    case EINTR:
      return Woken::kInterrupted;
    default:
      return Woken::kChanged;  // EAGAIN; the caller looks at the word again in any case
  }
}

void futex_wake(std::atomic<uint32_t>& word, int how_many, bool shared) {
  syscall(SYS_futex, &word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, how_many, nullptr, nullptr,
          0);
}

Fd event() {
  Fd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) throw Error::from_errno(errno, "event", "cannot make an eventfd");
  return fd;
}

void signal_event(int fd) {
  uint64_t one = 1;
  int error_number = errno;  // a signal handler must leave it as it was
  while (write(fd, &one, sizeof one) < 0 && errno == EINTR) {
  }
  errno = error_number;
}

void clear_event(int fd) {
  uint64_t count = 0;
  while (read(fd, &count, sizeof count) < 0 && errno == EINTR) {
  }
}

Poller::Poller() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw Error::from_errno(errno, "Poller", "cannot make an epoll descriptor");
}

void Poller::add(int fd, uint64_t tag) {
  epoll_event what{};
  what.events = EPOLLIN | EPOLLRDHUP;
  what.data.u64 = tag;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &what) != 0) {
    throw Error::from_errno(errno, "Poller.add", "descriptor " + std::to_string(fd));
  }
}

void Poller::remove(int fd) {
  epoll_event unused{};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, &unused) != 0) {
    throw Error::from_errno(errno, "Poller.remove", "descriptor " + std::to_string(fd));
  }
}

size_t Poller::wait(int64_t timeout_ns, std::span<uint64_t> tags) {
  std::array<epoll_event, 64> ready;
  size_t room = std::min(ready.size(), tags.size());
  if (room == 0) throw Error(Code::kInvalidArgument, "Poller.wait", "no room for a tag");
  int milliseconds = -1;
  if (timeout_ns >= 0) {
    milliseconds = static_cast<int>(
        std::min<int64_t>(timeout_ns / 1'000'000 + (timeout_ns % 1'000'000 != 0), INT_MAX));
  }
  int count = epoll_wait(epoll_.get(), ready.data(), static_cast<int>(room), milliseconds);
  if (count < 0) {
    if (errno == EINTR) return 0;
    throw Error::from_errno(errno, "Poller.wait", "epoll_wait");
  }
  for (int i = 0; i < count; ++i)
    tags[static_cast<size_t>(i)] = ready[static_cast<size_t>(i)].data.u64;
  return static_cast<size_t>(count);
}

}  // namespace penstock::os
