#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string>
#include <system_error>
#include <thread>

#include "penstock/base/error.h"
#include "penstock/base/os.h"

#ifndef SYS_pidfd_open  // headers older than Linux 5.3; the numbers are the same everywhere
#define SYS_pidfd_send_signal 424
#define SYS_pidfd_open 434
#endif

namespace penstock::os {
namespace {

// All signals but those of a thread's own faults: if these were blocked, a fault would end the
// process without the handler (Python's faulthandler, a sanitizer) that reports it.
sigset_t asynchronous_signals() {
  sigset_t set;
  sigfillset(&set);
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) {
    sigdelset(&set, fault);
  }
  return set;
}

// Threads started in its scope block asynchronous signals from their first instruction on.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t set = asynchronous_signals();
    pthread_sigmask(SIG_BLOCK, &set, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

Fd open_process(pid_t pid) {
  Fd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (fd) return fd;
  int error_number = errno;
  std::string text = "process " + std::to_string(pid);
  if (error_number == ESRCH) throw Error(Code::kNotFound, "open_process", text + " has ended");
  throw Error::from_errno(error_number, "open_process", text);
}

bool process_ended(int pidfd) {
  pollfd item{pidfd, POLLIN, 0};
  int ready;
  while ((ready = poll(&item, 1, 0)) < 0 && errno == EINTR) {
  }
  return ready > 0;
}

void send_signal(int pidfd, int signal) {
  if (syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) == 0 || errno == ESRCH) return;
  throw Error::from_errno(errno, "send_signal", "signal " + std::to_string(signal));
}

void exit_with(Fd process, int exit_code) {
  SignalsBlocked inherited_by_the_thread;
  try {
    std::thread([process = std::move(process), exit_code] {
      pollfd item{process.get(), POLLIN, 0};
      while (poll(&item, 1, -1) < 0 && errno == EINTR) {
      }
      // Anything else means that the descriptor was closed by other code: then do nothing.
      if (item.revents & POLLIN) _exit(exit_code);
    }).detach();
  } catch (const std::system_error& error) {
    throw Error::from_errno(error.code().value(), "exit_with", "cannot start a thread");
  }
}

void block_all_signals() {
  sigset_t set = asynchronous_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

}  // namespace penstock::os
