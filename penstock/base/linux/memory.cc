#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <string>

#include "penstock/base/error.h"
#include "penstock/base/os.h"

#ifndef MADV_COLLAPSE  // headers older than Linux 6.1
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_POPULATE_READ  // headers older than Linux 5.14
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace penstock::os {
namespace {

bool kernel_knows(int advice) { return madvise(nullptr, 0, advice) == 0; }

int reserve_blocks(int fd, uint64_t offset, size_t bytes) {
  FileSizeSignalBlocker hold;
  while (fallocate(fd, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                   static_cast<off_t>(bytes)) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

uint64_t size_of(int fd) {
  off_t end = lseek(fd, 0, SEEK_END);
  return end < 0 ? 0 : static_cast<uint64_t>(end);
}

int populate(void* address, size_t bytes, int advice, int fd, uint64_t offset) {
  if (bytes == 0) return 0;
  while (madvise(address, bytes, advice) != 0) {
    if (errno == EINTR) continue;
    if (errno != EINVAL || fd == kUnknownFile || kernel_knows(advice)) return errno;
    if (fd >= 0) {
      // Touching a file's page cannot fail once its blocks are allocated and the file is long
      // enough.
      if (offset + bytes > size_of(fd)) return EFAULT;
      if (int error_number = reserve_blocks(fd, offset, bytes)) return error_number;
    }
    auto* byte = static_cast<unsigned char*>(address);
    for (size_t at = 0; at < bytes; at += page_size()) {
      if (advice == MADV_POPULATE_WRITE) {
        __atomic_fetch_or(byte + at, static_cast<unsigned char>(0), __ATOMIC_RELAXED);
      } else {
        (void)__atomic_load_n(byte + at, __ATOMIC_RELAXED);
      }
    }
    return 0;
  }
  return 0;
}

}  // namespace

void Fd::reset(int fd) {
  int before = std::exchange(fd_, fd);
  if (before >= 0) close(before);  // not repeated on EINTR: Linux has closed it anyway
}

size_t page_size() {
  static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

FileSizeSignalBlocker::FileSizeSignalBlocker() {
  sigemptyset(&only_);
  sigaddset(&only_, SIGXFSZ);
  sigset_t pending;
  sigemptyset(&pending);
  sigpending(&pending);
  was_pending_ = sigismember(&pending, SIGXFSZ) == 1;
  pthread_sigmask(SIG_BLOCK, &only_, &before_);
}

FileSizeSignalBlocker::~FileSizeSignalBlocker() {
  int error_number = errno;
  timespec at_once{};
  if (!was_pending_) {
    while (sigtimedwait(&only_, nullptr, &at_once) < 0 && errno == EINTR) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  errno = error_number;
}

Fd memory_file(const char* name) {
  Fd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // If the program closed its standard streams, the descriptor could take one of their numbers, and
  // printed text would be written into the file.
  if (fd && fd.get() <= STDERR_FILENO) {
    fd = Fd(fcntl(fd.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  }
  if (!fd) throw Error::from_errno(errno, "memory_file", name);
  return fd;
}

void resize_file(int fd, uint64_t bytes) {
  int error_number = 0;
  {
    FileSizeSignalBlocker hold;
    while (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
      error_number = errno;
      if (error_number != EINTR) break;
      error_number = 0;
    }
  }
  if (error_number == 0) return;
  std::string text = "cannot make a file " + std::to_string(bytes) + " bytes long";
  if (error_number == EFBIG) {
    throw Error(Code::kOutOfMemory, "resize_file",
                text + ": it exceeds the limit on file size (ulimit -f)");
  }
  throw Error::from_errno(error_number, "resize_file", text);
}

void forbid_shrinking(int fd) {
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
    throw Error::from_errno(errno, "forbid_shrinking", "cannot seal a memory file");
  }
}

Fd memory_file(const char* name, uint64_t bytes) {
  Fd fd = memory_file(name);
  resize_file(fd.get(), bytes);
  forbid_shrinking(fd.get());
  return fd;
}

void* reserve_mapping(int fd_or_minus1, size_t bytes, bool shared) {
  int flags = MAP_NORESERVE | (shared ? MAP_SHARED : MAP_PRIVATE);
  if (fd_or_minus1 < 0) flags |= MAP_ANONYMOUS;
  return map_for_huge_pages(bytes, PROT_READ | PROT_WRITE, flags, std::max(fd_or_minus1, -1));
}

void unmap(void* address, size_t bytes) {
  if (address != nullptr && munmap(address, bytes) != 0) {
    throw Error::from_errno(errno, "unmap", std::to_string(bytes) + " bytes");
  }
}

int populate_write(void* address, size_t bytes, int fd, uint64_t offset) {
  return populate(address, bytes, MADV_POPULATE_WRITE, fd, offset);
}

int populate_read(void* address, size_t bytes, int fd, uint64_t offset) {
  return populate(address, bytes, MADV_POPULATE_READ, fd, offset);
}

void discard(int fd, void* address, uint64_t offset, size_t bytes) {
  if (bytes == 0) return;
  if (fd >= 0) {
    while (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                     static_cast<off_t>(bytes)) != 0 &&
           errno == EINTR) {
    }
  } else {
    (void)madvise(address, bytes, MADV_DONTNEED);
  }
}

void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_MAX, 0);         // large blocks come from the heap too, where they are recycled,
  mallopt(M_TRIM_THRESHOLD, -1);  // and the heap never shrinks (-1: no trimming at all)
  mallopt(M_TOP_PAD, 64 << 20);   // it grows in few, large steps; also keeps threads' heaps
#endif
}

namespace {

size_t up_to(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::byte* first_huge_page(void* address) {
  return reinterpret_cast<std::byte*>(up_to(reinterpret_cast<uintptr_t>(address), kHugePage));
}

}  // namespace

void* map_for_huge_pages(size_t bytes, int protection, int flags, int fd) {
  // Reserve more than needed, so that an aligned address is in it; unmap the rest afterwards.
  std::byte* space = nullptr;
  if (bytes >= kHugePage && bytes < SIZE_MAX / 2) {
    void* found = mmap(nullptr, bytes + kHugePage, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found != MAP_FAILED) space = static_cast<std::byte*>(found);
  }
  std::byte* wanted = first_huge_page(space);
  if (space != nullptr) flags |= MAP_FIXED;
  void* address = mmap(wanted, bytes, protection, flags, fd, 0);
  if (space == nullptr) return address == MAP_FAILED ? nullptr : address;
  if (address == MAP_FAILED) {
    const int error_number = errno;
    munmap(space, bytes + kHugePage);
    errno = error_number;
    return nullptr;
  }
  const auto before = static_cast<size_t>(wanted - space);
  if (before > 0) munmap(space, before);
  munmap(wanted + up_to(bytes, page_size()), kHugePage - before);
  return address;
}

void collapse_huge_pages(void* address, size_t bytes) {
  auto* end = static_cast<std::byte*>(address) + bytes;
  std::byte* const first = first_huge_page(address);
  std::byte* at = first;
  // The kernel collapses a huge page only if one of its small pages is present; it adds the others.
  while (at < end && static_cast<size_t>(end - at) >= kHugePage) {
    if (populate_write(at, page_size()) != 0) break;
    at += kHugePage;
  }
  // One call for all, since each call first drains the per-core page caches.
  if (at > first) (void)madvise(first, static_cast<size_t>(at - first), MADV_COLLAPSE);
}

void prefer_huge_pages(void* address, size_t bytes, int fd) {
  // Pages of a memory file are huge only by a system-wide setting, or if they are collapsed.
  if (fd < 0) {
    (void)madvise(address, bytes, MADV_HUGEPAGE);
  } else {
    collapse_huge_pages(address, bytes);
  }
}

}  // namespace penstock::os
