#include <linux/futex.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
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
      return Woken::kChanged;  // EAGAIN; the caller checks the word again in any case
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
  epoll_event item{};
  item.events = EPOLLIN | EPOLLRDHUP;
  item.data.u64 = tag;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &item) != 0) {
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
  size_t max_events = std::min(ready.size(), tags.size());
  if (max_events == 0) throw Error(Code::kInvalidArgument, "Poller.wait", "tags must not be empty");
  int milliseconds = -1;
  if (timeout_ns >= 0) {
    milliseconds = static_cast<int>(
        std::min<int64_t>(timeout_ns / 1'000'000 + (timeout_ns % 1'000'000 != 0), INT_MAX));
  }
  int count = epoll_wait(epoll_.get(), ready.data(), static_cast<int>(max_events), milliseconds);
  if (count < 0) {
    if (errno == EINTR) return 0;
    throw Error::from_errno(errno, "Poller.wait", "epoll_wait");
  }
  for (int i = 0; i < count; ++i)
    tags[static_cast<size_t>(i)] = ready[static_cast<size_t>(i)].data.u64;
  return static_cast<size_t>(count);
}

namespace {

timespec timespec_of(int64_t ns) {
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

}  // namespace

Woken futex_wait_bitset(std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns,
                        uint32_t groups) {
  timespec end{};  // an absolute time of the monotonic clock, unlike that of futex_wait
  if (timeout_ns >= 0) {
    clock_gettime(CLOCK_MONOTONIC, &end);
    const timespec timeout = timespec_of(timeout_ns);
    end.tv_sec += timeout.tv_sec;
    end.tv_nsec += timeout.tv_nsec;
    if (end.tv_nsec >= 1'000'000'000) {
      end.tv_nsec -= 1'000'000'000;
      ++end.tv_sec;
    }
  }
  if (syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, expected, timeout_ns >= 0 ? &end : nullptr,
              nullptr, groups) == 0) {
    return Woken::kWoken;
  }
  if (errno == ETIMEDOUT) return Woken::kTimeout;
  return errno == EINTR ? Woken::kInterrupted : Woken::kChanged;
}

void futex_wake_bitset(std::atomic<uint32_t>& word, int how_many, uint32_t groups) {
  syscall(SYS_futex, &word, FUTEX_WAKE_BITSET, how_many, nullptr, nullptr, groups);
}

Fd timer() {
  Fd fd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!fd) throw Error::from_errno(errno, "timer", "cannot make a timerfd");
  return fd;
}

void set_timer(int fd, int64_t after_ns) {
  itimerspec when{};
  when.it_value = timespec_of(after_ns);
  (void)timerfd_settime(fd, 0, &when, nullptr);
}

}  // namespace penstock::os
