#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "penstock/base/error.h"
#include "penstock/base/os_sleepers.h"

namespace penstock::os {
namespace {

timespec timespec_of(int64_t ns) {
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

}  // namespace

Woken futex_wait_in(std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns,
                    uint32_t groups) {
  timespec end{};  // unlike futex_wait's, a time of the monotonic clock
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

void futex_wake_in(std::atomic<uint32_t>& word, int how_many, uint32_t groups) {
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
