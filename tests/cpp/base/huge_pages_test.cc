#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "penstock/base/os.h"

namespace penstock::os {
namespace {

constexpr int kBoth = PROT_READ | PROT_WRITE;

char* map(size_t bytes, const Fd& file) {
  const int flags = file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  return static_cast<char*>(map_for_huge_pages(bytes, kBoth, flags, file.get()));
}

bool begins_a_huge_page(const char* address) {
  return reinterpret_cast<uintptr_t>(address) % kHugePage == 0;
}

TEST(HugePages, what_is_long_enough_begins_where_one_can) {
  for (const size_t bytes : {kHugePage, kHugePage + 1, 5 * kHugePage - page_size()}) {
    for (int round = 0; round < 4; ++round) {  // starting where the last round ended
      char* anonymous = map(bytes, Fd());
      ASSERT_NE(anonymous, nullptr) << strerror(errno);
      EXPECT_TRUE(begins_a_huge_page(anonymous)) << bytes;
      const Fd file = memory_file("penstock-test");
      resize_file(file.get(), bytes);
      char* of_file = map(bytes, file);
      ASSERT_NE(of_file, nullptr) << strerror(errno);
      EXPECT_TRUE(begins_a_huge_page(of_file)) << bytes;
      unmap(of_file, bytes);
      unmap(anonymous, bytes - round * page_size());  // the remaining pages shift the next mappings
    }
  }
}

#ifndef PENSTOCK_SANITIZED  // sanitizers map memory of their own
// The number of pages that this process has mapped.
long mapped_pages() {
  char text[64] = {};
  const Fd file(open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
  return read(file.get(), text, sizeof text - 1) > 0 ? std::strtol(text, nullptr, 10) : -1;
}

TEST(HugePages, a_mapping_takes_its_own_length_of_addresses) {
  for (const size_t bytes : {page_size(), kHugePage, 3 * kHugePage + 2 * page_size() + 1}) {
    const long before = mapped_pages();
    char* address = map(bytes, Fd());
    const long during = mapped_pages();
    ASSERT_NE(address, nullptr) << strerror(errno);
    unmap(address, bytes);
    ASSERT_GT(before, 0);
    EXPECT_EQ(during - before, static_cast<long>((bytes + page_size() - 1) / page_size()));
    EXPECT_EQ(mapped_pages(), before);
    const Fd readable(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(map_for_huge_pages(bytes, kBoth, MAP_SHARED, readable.get()), nullptr);
    EXPECT_EQ(mapped_pages(), before);
  }
}
#endif

TEST(HugePages, what_cannot_be_mapped_is_a_null_and_an_errno) {
  errno = 0;
  EXPECT_EQ(map_for_huge_pages(size_t{1} << 62, kBoth, MAP_PRIVATE | MAP_ANONYMOUS, -1), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  const Fd readable(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  errno = 0;
  EXPECT_EQ(map_for_huge_pages(2 * kHugePage, kBoth, MAP_SHARED, readable.get()), nullptr);
  EXPECT_EQ(errno, EACCES);
}

TEST(HugePages, wishing_for_them_changes_no_byte) {
  const size_t bytes = 3 * kHugePage + 3 * page_size();
  for (const bool shared : {false, true}) {
    Fd file;
    if (shared) {
      file = memory_file("penstock-test");
      resize_file(file.get(), bytes);
    }
    char* address = map(bytes, file);
    ASSERT_NE(address, nullptr) << strerror(errno);
    // Two huge pages' worth is untouched, and one has a byte in it.
    address[kHugePage + 12345] = 7;
    prefer_huge_pages(address, bytes, file.get());
    EXPECT_EQ(populate_write(address, bytes, file.get(), 0), 0);
    EXPECT_EQ(std::count(address, address + bytes, 0), static_cast<ptrdiff_t>(bytes - 1));
    EXPECT_EQ(address[kHugePage + 12345], 7);
    std::memset(address, 5, bytes);
    prefer_huge_pages(address, bytes, file.get());
    EXPECT_EQ(std::count(address, address + bytes, 5), static_cast<ptrdiff_t>(bytes));
    if (shared) {
      char* other = map(bytes, file);
      ASSERT_NE(other, nullptr) << strerror(errno);
      EXPECT_EQ(std::memcmp(address, other, bytes), 0);
      discard(file.get(), nullptr, kHugePage, page_size());
      EXPECT_EQ(other[kHugePage] + other[kHugePage + page_size() - 1], 0);
      EXPECT_EQ(other[kHugePage - 1] + other[kHugePage + page_size()], 10);
      unmap(other, bytes);
    }
    unmap(address, bytes);
  }
}

TEST(HugePages, a_file_that_is_shorter_is_no_signal) {
  const Fd file = memory_file("penstock-test");
  resize_file(file.get(), page_size());
  char* address = map(2 * kHugePage, file);
  ASSERT_NE(address, nullptr) << strerror(errno);
  prefer_huge_pages(address, 2 * kHugePage, file.get());
  EXPECT_EQ(populate_write(address, page_size(), file.get(), 0), 0);
  address[0] = 1;
  EXPECT_NE(populate_write(address, 2 * kHugePage, file.get(), 0), 0);
  unmap(address, 2 * kHugePage);
}

}  // namespace
}  // namespace penstock::os
