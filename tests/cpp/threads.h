// The id of this thread, and whether a thread sleeps. (A flag set by the thread itself would be set
// before it sleeps.)
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace penstock::testing {

inline pid_t this_thread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

// A thread of this process, as the kernel sees it.
inline bool sleeps(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');
  return name_end != std::string::npos && text[name_end + 2] == 'S';
}

}  // namespace penstock::testing
