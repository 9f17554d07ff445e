#pragma once

#include <cstddef>

// Memory in huge pages: where what is large is gone through from end to end, looking up small pages
// takes as long as reading what they hold, on a virtual machine above all. Never throws; whether it
// works changes no result. Any thread.
namespace penstock::os {

inline constexpr size_t kHugePage = size_t{2}
                                    << 20;  // where pages are of 4 KiB; else it is refused

// mmap() from the start of the file `fd` (-1: of none), at an address where a huge page can begin
// if it is long enough for one. nullptr and errno on failure. unmap() of os.h ends it.
void* map_for_huge_pages(size_t bytes, int protection, int flags, int fd);

// Wishes for huge pages in such a mapping, a writable one, before its pages are made present. Only
// whole ones in the range become such; those of no file come whole with the first of their bytes.
void prefer_huge_pages(void* address, size_t bytes, int fd);

// Puts the pages of each whole huge page in the range together, and makes those that are missing
// present: now, and not for what is discarded and comes again later, as the wish above would.
void gather_pages(void* address, size_t bytes);

}  // namespace penstock::os
