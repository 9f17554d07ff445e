#include "penstock/base/huge_pages.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>

#include "penstock/base/os.h"

#ifndef MADV_COLLAPSE  // headers older than Linux 6.1
#define MADV_COLLAPSE 25
#endif

namespace penstock::os {
namespace {

size_t up_to(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::byte* first_huge_page(void* address) {
  return reinterpret_cast<std::byte*>(up_to(reinterpret_cast<uintptr_t>(address), kHugePage));
}

}  // namespace

void* map_for_huge_pages(size_t bytes, int protection, int flags, int fd) {
  // Room in which there is such an address; around the mapping it is given back.
  std::byte* room = nullptr;
  if (bytes >= kHugePage && bytes < SIZE_MAX / 2) {
    void* found = mmap(nullptr, bytes + kHugePage, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found != MAP_FAILED) room = static_cast<std::byte*>(found);
  }
  std::byte* wanted = first_huge_page(room);
  if (room != nullptr) flags |= MAP_FIXED;
  void* address = mmap(wanted, bytes, protection, flags, fd, 0);
  if (room == nullptr) return address == MAP_FAILED ? nullptr : address;
  if (address == MAP_FAILED) {
    const int error_number = errno;
    munmap(room, bytes + kHugePage);
    errno = error_number;
    return nullptr;
  }
  const auto before = static_cast<size_t>(wanted - room);
  if (before > 0) munmap(room, before);
  munmap(wanted + up_to(bytes, page_size()), kHugePage - before);
  return address;
}

void gather_pages(void* address, size_t bytes) {
  auto* end = static_cast<std::byte*>(address) + bytes;
  std::byte* const first = first_huge_page(address);
  std::byte* at = first;
  // One small page of each must be there; the others come with it, as zeroes.
  while (at < end && static_cast<size_t>(end - at) >= kHugePage) {
    if (populate_write(at, page_size()) != 0) break;
    at += kHugePage;
  }
  // In one call, since each begins with a look at what all cores still have on their hands.
  if (at > first) (void)madvise(first, static_cast<size_t>(at - first), MADV_COLLAPSE);
}

void prefer_huge_pages(void* address, size_t bytes, int fd) {
  // Pages of a memory file are huge if the whole system is set to it, or if they are put together.
  if (fd < 0) {
    (void)madvise(address, bytes, MADV_HUGEPAGE);
  } else {
    gather_pages(address, bytes);
  }
}

}  // namespace penstock::os
