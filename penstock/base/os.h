#pragma once

#include <sys/types.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

// Everything that penstock needs from an operating system beyond POSIX. A port is a folder beside
// base/linux/ that defines these functions; no other file includes system-specific headers.
//
// Unless a comment says otherwise: any thread may call; failures throw penstock::Error (kSystem, or
// kOutOfMemory if there is no memory, or a limit on memory is reached).
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
  int release() { return std::exchange(fd_, -1); }  // the caller owns the descriptor now
  void reset(int fd = -1);                          // closes the descriptor, then owns `fd`

 private:
  int fd_ = -1;
};

// Another descriptor of the same open file, which stays open when `fd` is closed. Closed on exec;
// never a standard descriptor. `operation`: of the Error.
Fd duplicate(int fd, const char* operation);

// ---- memory -----------------------------------------------------------------------------------

size_t page_size();

// An empty anonymous file in memory, which dies with its last descriptor and mapping. Closed on
// exec. `name` appears only in listings of the system.
Fd memory_file(const char* name);

// Sets the file's size; new bytes are zero and use no memory until accessed. A limit on file size
// (RLIMIT_FSIZE) is an Error kOutOfMemory and never the signal SIGXFSZ.
void resize_file(int fd, uint64_t bytes);

// From now on no process can make the file smaller, so resize_file() in one process cannot cause
// SIGBUS in another that maps the file. Growing and discard() still work.
void forbid_shrinking(int fd);

// A memory file of `bytes` bytes that cannot be made smaller.
Fd memory_file(const char* name, uint64_t bytes);

// Maps `bytes` bytes of the file from its start (fd -1: anonymous zeroes), readable and writable,
// without committing memory. The mapping may be longer than the file is now. shared: writes go to
// the file and are shared with forks; otherwise they are private.
// Returns nullptr and sets errno on failure; never throws.
void* reserve_mapping(int fd_or_minus1, size_t bytes, bool shared);
void unmap(void* address, size_t bytes);

// Makes pages present and writable (or readable) before use. Returns 0 or an errno: if the machine
// is full, ENOMEM or EFAULT, where a plain store would be SIGBUS. Whole pages; the contents do not
// change, and other threads may use the same pages meanwhile. Without kernel support (Linux before
// 5.14) pages are touched one by one, which is safe only if the file is known: pass the `fd` and
// `offset` that back `address` (fd -1: anonymous). Otherwise such a kernel's errno, EINVAL, is
// returned and nothing is touched.
inline constexpr int kUnknownFile = -2;
int populate_write(void* address, size_t bytes, int fd = kUnknownFile, uint64_t offset = 0);
int populate_read(void* address, size_t bytes, int fd = kUnknownFile, uint64_t offset = 0);

// Returns whole pages to the system; they read as zero afterwards. For a file, every process's
// mapping of [offset, offset + bytes) is affected and `address` is ignored; fd -1: the anonymous,
// private pages at `address`. Best effort, never throws: on failure the pages stay as they were.
void discard(int fd, void* address, uint64_t offset, size_t bytes);

// Huge pages: for large memory that is read or written from end to end, looking up small pages
// takes as long as accessing their data, above all on virtual machines. These functions never
// throw, and their failure changes no result.
inline constexpr size_t kHugePage = size_t{2} << 20;  // if pages are 4 KiB; other sizes are refused

// mmap() of the file `fd` from its start (-1: anonymous), at an address aligned for huge pages if
// the mapping is long enough for one. nullptr and errno on failure. Unmap with unmap().
void* map_for_huge_pages(size_t bytes, int protection, int flags, int fd);

// Asks for huge pages in such a mapping, before its pages are present. REQUIRED: it is writable.
// Only whole huge pages in the range are affected; anonymous ones are allocated at the first
// access.
void prefer_huge_pages(void* address, size_t bytes, int fd);

// Allocates the missing pages of each whole huge page in the range, and collapses them now. Unlike
// prefer_huge_pages(), this does not apply to pages that are discarded and allocated again later.
void collapse_huge_pages(void* address, size_t bytes);

// ---- files ------------------------------------------------------------------------------------

// Growing a file beyond RLIMIT_FSIZE sends SIGXFSZ to the calling thread, which by default ends the
// process. This object blocks the signal in the thread that constructs it, and its destructor, in
// the same thread, discards a signal that arrived meanwhile. So only the errno, EFBIG, remains.
class FileSizeSignalBlocker {
 public:
  FileSizeSignalBlocker();
  ~FileSizeSignalBlocker();  // does not change errno
  FileSizeSignalBlocker(const FileSizeSignalBlocker&) = delete;
  FileSizeSignalBlocker& operator=(const FileSizeSignalBlocker&) = delete;

 private:
  sigset_t only_, before_;
  bool was_pending_;
};

// Locks an open file. All duplicates of the descriptor, also in other processes, share the lock,
// which ends when the last of them is closed. False: another open file holds the lock.
bool lock_file(int fd);

// A new file in this folder, for writing, without a name. It dies with its last descriptor, also if
// the process is killed. Closed on exec. Empty: the folder, or the machine, does not support such
// files. Never throws.
Fd unnamed_file(const char* folder);

// Gives such a file a name. False, and errno, on failure; EEXIST if the name exists. Never throws.
bool name_file(int fd, const char* path);

// ---- waiting ----------------------------------------------------------------------------------

enum class Woken { kWoken, kChanged, kTimeout, kInterrupted };

// Sleeps while `word` holds `expected`, until futex_wake, the timeout (< 0: for ever) or a signal.
// kChanged: the word did not hold `expected`. kWoken may be spurious: check the word again.
// shared: the word is in memory shared between processes. Never throws.
Woken futex_wait(std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns, bool shared);
void futex_wake(std::atomic<uint32_t>& word, int how_many, bool shared);

// The same on a word shared between processes, with groups, one bit each: a thread sleeps in one or
// more groups, and a wake-up concerns the threads in any of its groups.
Woken futex_wait_bitset(std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns,
                        uint32_t groups);
void futex_wake_bitset(std::atomic<uint32_t>& word, int how_many, uint32_t groups);

// A descriptor that is readable from signal_event() until clear_event(). Non-blocking and closed on
// exec. signal_event() may be called in a signal handler.
Fd event();
void signal_event(int fd);
void clear_event(int fd);

// A descriptor that becomes readable when the time set last (> 0) has passed, until clear_event.
// Non-blocking and closed on exec. set_timer() itself wakes no waiter.
Fd timer();
void set_timer(int fd, int64_t after_ns);

// Waits until any of several descriptors is readable, hung up, or a process that has ended. add and
// remove may be called from any thread, also while another waits. Does not own the descriptors:
// remove one before closing it.
class Poller {
 public:
  Poller();
  void add(int fd, uint64_t tag);
  void remove(int fd);
  // Stores the tags of ready descriptors; returns how many, 0 after the timeout (< 0: none) or a
  // signal. Timeouts are rounded up to milliseconds.
  size_t wait(int64_t timeout_ns, std::span<uint64_t> tags);

 private:
  Fd epoll_;
};

// ---- processes --------------------------------------------------------------------------------

// A handle of a running process (or of a child that is not reaped yet), which never refers to a
// recycled pid. Error kNotFound if there is no such process. Closed on exec. Readable in a Poller
// when the process has ended.
Fd open_process(pid_t pid);
bool process_ended(int pidfd);
// No effect on a process that has ended.
void send_signal(int pidfd, int signal);

// From now on, when `process` ends for any reason, this process immediately ends with
// _exit(exit_code), called in a separate thread that takes no signals. A fork does not inherit the
// watch.
void exit_with(Fd process, int exit_code);

// Blocks asynchronous signals in the calling thread (but not those of its own faults, such as
// SIGSEGV). For engine threads, so that Ctrl-C is always delivered to a thread of the user.
void block_all_signals();

// malloc keeps freed memory of any size, instead of returning it to the system and faulting it in
// again. Affects the whole process: meant for worker processes. No effect without glibc.
void keep_freed_memory();

// ---- limits of the machine --------------------------------------------------------------------
// These include the limits of containers (cgroup v1 and v2, every level up to the root). Read at
// each call, in tens of microseconds. Never throw: a limit that cannot be read does not apply.

uint64_t memory_limit();            // the most bytes that this process may use
uint64_t memory_headroom();         // bytes that can be used now without exceeding a limit
uint64_t process_resident_bytes();  // of this process, shared pages included
unsigned usable_cores();            // at least 1: affinity and CPU quota (rounded up)

// The cores that the calling thread may run on, in `groups` groups of nearly equal size. Cores that
// share their largest cache are adjacent: core i of n is in group i * groups / n. With fewer cores
// than groups, each group has all cores.
std::vector<std::vector<unsigned>> core_groups(size_t groups);
// Pins the calling thread, and threads that it starts later, to these cores. Best effort: no effect
// if the system refuses, or `cores` is empty.
void pin_to_cores(const std::vector<unsigned>& cores);

}  // namespace penstock::os
