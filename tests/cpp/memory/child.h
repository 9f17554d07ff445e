#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace penstock::testing {

// A forked child that runs `body` and ends with 0 if it returned true. Bounded by an alarm.
template <typename Body>
pid_t start_child(Body body) {
  pid_t pid = fork();
  if (pid != 0) return pid;
  alarm(60);
  bool ok = false;
  try {
    ok = body();
  } catch (...) {
  }
  _exit(ok ? 0 : 1);
}

// The child's wait status; 0 is success.
inline int status_of(pid_t pid) {
  int status = -1;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

inline void kill_child(pid_t pid) {
  kill(pid, SIGKILL);
  status_of(pid);
}

template <typename Body>
bool holds_in_child(Body body) {
  return status_of(start_child(body)) == 0;
}

// One-way signals between parent and child; both ends stay open in both.
class Gate {
 public:
  Gate() { ok_ = pipe(ends_) == 0; }
  ~Gate() {
    close(ends_[0]);
    close(ends_[1]);
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  template <typename T>
  bool send(const T& value) {
    return ok_ && write(ends_[1], &value, sizeof value) == static_cast<ssize_t>(sizeof value);
  }
  template <typename T>
  bool receive(T& value) {
    return ok_ && read(ends_[0], &value, sizeof value) == static_cast<ssize_t>(sizeof value);
  }

 private:
  int ends_[2] = {-1, -1};
  bool ok_ = false;
};

}  // namespace penstock::testing
