#include "penstock/io/file_pool.h"

#include <gtest/gtest.h>

#include <thread>

#include "memory_files.h"

namespace penstock {
namespace {

struct FilePoolTest : ::testing::Test {
  FilePoolTest() {
    for (const char* path : {"a", "b", "c"}) (*files)[path] = path;
  }
  std::shared_ptr<MemoryFiles> files = std::make_shared<MemoryFiles>();
};

TEST_F(FilePoolTest, a_file_is_opened_once) {
  FilePool pool(files);
  const uint32_t a = pool.add("a");
  EXPECT_EQ(pool.add("a"), a);
  EXPECT_EQ(files->opened, 0);
  auto file = pool.get(a);
  EXPECT_EQ(pool.get(a), file);
  EXPECT_EQ(files->opened, 1);
}

TEST_F(FilePoolTest, the_one_unused_longest_is_closed) {
  FilePool pool(files, 2);
  const uint32_t a = pool.add("a"), b = pool.add("b"), c = pool.add("c");
  pool.get(a);
  pool.get(b);
  pool.get(a);
  pool.get(c);  // closes b
  EXPECT_EQ(pool.open_files(), 2u);
  pool.get(a);
  EXPECT_EQ(files->opened, 3);
  pool.get(b);
  EXPECT_EQ(files->opened, 4);
  EXPECT_EQ(pool.open_files(), 2u);
}

TEST_F(FilePoolTest, a_file_that_was_closed_can_still_be_read_by_who_has_it) {
  FilePool pool(files, 1);
  auto a = pool.get(pool.add("a"));
  pool.get(pool.add("b"));
  std::byte byte{};
  const File::Segment segment{0, &byte, 1};
  a->read({&segment, 1});
  EXPECT_EQ(static_cast<char>(byte), 'a');
}

TEST_F(FilePoolTest, a_file_that_cannot_be_opened_is_an_error_each_time) {
  FilePool pool(files);
  const uint32_t gone = pool.add("gone"), a = pool.add("a");
  EXPECT_THROW(pool.get(gone), Error);
  EXPECT_THROW(pool.get(gone), Error);
  EXPECT_NE(pool.get(a), nullptr);
}

TEST_F(FilePoolTest, many_threads_share_few_files) {
  FilePool pool(files, 1);
  const uint32_t numbers[] = {pool.add("a"), pool.add("b"), pool.add("c")};
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        const int which = (i * 7 + t) % 3;
        wrong += pool.get(numbers[which])->path() != std::string(1, static_cast<char>('a' + which));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(pool.open_files(), 1u);
}

}  // namespace
}  // namespace penstock
