#pragma once

#include <sys/types.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

// Everything that penstock asks of an operating system beyond POSIX. A port is one folder beside
// base/linux/ that defines what is declared here; no other file includes a system's own headers.
//
// Unless a comment says otherwise: any thread may call; failures throw penstock::Error (kSystem,
// or kOutOfMemory where memory, or a limit on it, is what is missing).
namespace penstock::os {

// Owns one open descriptor and closes it. Move-only. Not synchronised.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }  // the caller owns it now
  void reset(int fd = -1);                          // closes what is held, then owns `fd`

 private:
  int fd_ = -1;
};

// Another descriptor of the same open file, for who keeps it when the caller closes his. Closed on
// exec; none of the standard ones. An error is one of `operation`.
Fd duplicate(int fd, const char* operation);

// ---- memory -----------------------------------------------------------------------------------

size_t page_size();

// An anonymous file of zero bytes that lives in memory and dies with its last descriptor and
// mapping. Closed on exec. `name` is only seen in listings of the system.
Fd memory_file(const char* name);

// Sets the file's size; new bytes are zero and cost nothing until touched. A limit on file size
// (RLIMIT_FSIZE) is an Error of kind kOutOfMemory and never the signal SIGXFSZ.
void resize_file(int fd, uint64_t bytes);

// From now on nobody can make the file smaller, so that no process that maps it can be struck by
// SIGBUS through another one's resize_file. Growing and discard() still work.
void forbid_shrinking(int fd);

// A memory file of so many bytes that nobody can make smaller.
Fd memory_file(const char* name, uint64_t bytes);

// Address space for `bytes` bytes of the file from its start (fd -1: anonymous zeroes), readable
// and writable, with no memory committed. The mapping may be longer than the file is now.
// shared: writes go to the file, and a fork shares them; otherwise they are private.
// Returns nullptr and sets errno on failure; never throws.
void* reserve_mapping(int fd_or_minus1, size_t bytes, bool shared);
void unmap(void* address, size_t bytes);

// Makes pages present and writable (or readable) before they are used. Returns 0 or an errno: a
// full machine is ENOMEM or EFAULT here where a plain store would be SIGBUS. Whole pages; the
// contents do not change, and other threads may use the same pages meanwhile.
// Where the kernel cannot do it (Linux before 5.14) pages are touched one by one, which is safe
// only with the file known: pass the `fd` and `offset` that back `address` (fd -1: anonymous).
// Without them such a kernel's errno, EINVAL, comes back and nothing was touched.
inline constexpr int kUnknownFile = -2;
int populate_write(void* address, size_t bytes, int fd = kUnknownFile, uint64_t offset = 0);
int populate_read(void* address, size_t bytes, int fd = kUnknownFile, uint64_t offset = 0);

// Gives whole pages back to the system; they read as zero afterwards. For a file, every process's
// mapping of [offset, offset + bytes) is affected and `address` is ignored; fd -1: the anonymous,
// private pages at `address`. Best effort, never throws: what is refused stays as it was.
void discard(int fd, void* address, uint64_t offset, size_t bytes);

// ---- files ------------------------------------------------------------------------------------

// Growing a file past RLIMIT_FSIZE sends SIGXFSZ to the calling thread, which by default ends the
// process. Holds the signal back in the thread that makes this, until it is destroyed there, and
// swallows it if it came meanwhile: all that is left is the errno, EFBIG.
class HoldFileSizeSignal {
 public:
  HoldFileSizeSignal();
  ~HoldFileSizeSignal();  // leaves errno as it is
  HoldFileSizeSignal(const HoldFileSizeSignal&) = delete;
  HoldFileSizeSignal& operator=(const HoldFileSizeSignal&) = delete;

 private:
  sigset_t only_, before_;
  bool was_pending_;
};

// Takes a lock on an open file, which every copy of its descriptor shares, in other processes too,
// and which ends with the last of them, however that comes about. False: somebody else has it.
bool lock_file(int fd);

// ---- waiting ----------------------------------------------------------------------------------

enum class Woken { kWoken, kChanged, kTimeout, kInterrupted };

// Sleeps while `word` holds `expected`, until futex_wake, the timeout (< 0: for ever) or a signal.
// kChanged: it did not hold `expected`. kWoken may be spurious: look at the word again.
// shared: the word is in memory shared between processes. Never throws.
Woken futex_wait(std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns, bool shared);
void futex_wake(std::atomic<uint32_t>& word, int how_many, bool shared);

// A descriptor that is readable once signal_event was called, until clear_event. Non-blocking and
// closed on exec. signal_event may be called in a signal handler.
Fd event();
void signal_event(int fd);
void clear_event(int fd);

// Waits for any of several descriptors to be readable, hung up, or (a process's) ended.
// add and remove may be called from any thread, also while another waits. Does not own the
// descriptors: remove one before closing it.
class Poller {
 public:
  Poller();
  void add(int fd, uint64_t tag);
  void remove(int fd);
  // Tags of ready descriptors; returns how many, 0 after the timeout (< 0: for ever) or a signal.
  // Timeouts are rounded up to milliseconds.
  size_t wait(int64_t timeout_ns, std::span<uint64_t> tags);

 private:
  Fd epoll_;
};

// ---- processes --------------------------------------------------------------------------------

// A handle of a living process (or one of our children, until it is reaped) that a recycled pid
// cannot mislead. Error kNotFound if there is no such process. Closed on exec. Readable in a Poller
// when the process ends.
Fd open_process(pid_t pid);
bool process_ended(int pidfd);
// No effect on a process that has ended.
void send_signal(int pidfd, int signal);

// From now on, once the process behind `process` has ended, however it came about, this process
// ends at once with _exit(exit_code), from a thread of its own that takes no signals. A fork of
// this process does not inherit the watch.
void die_with(Fd process, int exit_code);

// The calling thread takes no asynchronous signals any more (those of a fault of its own, such as
// SIGSEGV, it does). For engine threads, so that Ctrl-C always lands in the user's.
void block_all_signals();

// malloc keeps what is freed, however large, instead of returning it to the system and faulting
// it in again. Affects the whole process: meant for worker processes. No-op without glibc.
void keep_freed_memory();

// ---- what the machine has ---------------------------------------------------------------------
// Containers' limits (cgroup v1 and v2, every level up to the root) count. Read afresh at each
// call, tens of microseconds; never throw: what cannot be read does not limit.

uint64_t memory_limit();            // bytes that this process may ever hope for
uint64_t memory_headroom();         // bytes that may be used now before something is killed
uint64_t process_resident_bytes();  // of this process, shared pages included
unsigned usable_cores();            // at least 1: affinity and CPU quota (rounded up)

// The cores that the calling thread may run on, cut into `groups` of about as many, those that
// share their largest cache side by side: core i of n in group i * groups / n. With fewer cores
// than groups each group has all of them.
std::vector<std::vector<unsigned>> near_cores(size_t groups);
// From now on the calling thread, and those that it starts, run on these cores only. A wish: where
// the system refuses, or with none, nothing changes.
void stay_on(const std::vector<unsigned>& cores);

}  // namespace penstock::os
