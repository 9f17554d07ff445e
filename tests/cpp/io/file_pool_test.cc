#include "penstock/io/file_pool.h"

#include <gtest/gtest.h>

#include <thread>

#include "../memory/child.h"
#include "memory_files.h"

namespace penstock {
namespace {

struct FilePoolTest : ::testing::Test {
  FilePoolTest() {
    for (const char* path : {"a", "b", "c"}) (*files)[path] = path;
  }
  static std::shared_ptr<OpenFiles> at_most(size_t n) { return std::make_shared<OpenFiles>(n); }
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
  FilePool pool(files, at_most(2));
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

TEST_F(FilePoolTest, a_file_that_somebody_holds_is_not_closed) {
  FilePool pool(files, at_most(1));
  const uint32_t a = pool.add("a"), b = pool.add("b"), c = pool.add("c");
  auto held = pool.get(a);
  EXPECT_EQ(pool.try_get(b), nullptr);
  EXPECT_NE(pool.get(b), nullptr);  // it is opened again when needed
  EXPECT_EQ(pool.open_files(), 2u);
  EXPECT_EQ(pool.try_get(a), held);
  EXPECT_EQ(files->opened, 2);
  held.reset();
  EXPECT_NE(pool.try_get(c), nullptr);
  EXPECT_EQ(pool.open_files(), 1u);
}

TEST_F(FilePoolTest, what_is_read_outlives_its_pool) {
  auto pool = std::make_unique<FilePool>(files, at_most(1));
  auto a = pool->get(pool->add("a"));
  pool.reset();
  std::byte byte{};
  const File::Segment segment{0, &byte, 1};
  a->read({&segment, 1});
  EXPECT_EQ(static_cast<char>(byte), 'a');
}

TEST_F(FilePoolTest, pools_share_what_may_be_open) {
  auto open = at_most(2);
  FilePool first(files, open);
  auto second = std::make_unique<FilePool>(files, open);
  const uint32_t a = first.add("a"), b = first.add("b");
  first.get(a);
  first.get(b);
  second->get(second->add("a"));
  EXPECT_EQ(open->count(), 2u);
  EXPECT_EQ(first.open_files(), 1u);  // its a was the least recently used file
  first.get(b);
  EXPECT_EQ(files->opened, 3);
  second.reset();
  EXPECT_EQ(open->count(), 1u);
}

TEST_F(FilePoolTest, another_file_under_the_same_name_is_another_pools) {
  FilePool first(files), second(files);
  auto before = first.get(first.add("a"));
  EXPECT_NE(second.get(second.add("a")), before);
}

TEST_F(FilePoolTest, without_descriptors_others_are_closed) {
  auto open = at_most(100);
  FilePool first(files, open), second(files, open);
  files->descriptors = 2;
  auto a = first.get(first.add("a"));
  first.get(first.add("b"));
  EXPECT_EQ(second.get(second.add("c"))->path(), "c");  // b was closed for it
  EXPECT_EQ(first.open_files(), 1u);
  auto c = second.get(second.add("c"));
  EXPECT_THROW(first.get(first.add("b")), TooManyOpenFiles);  // all are held
  c.reset();
  EXPECT_EQ(first.get(first.add("b"))->path(), "b");
}

TEST_F(FilePoolTest, what_nobody_uses_is_closed) {
  auto pool = std::make_shared<FilePool>(files);
  const uint32_t a = pool->add("a"), b = pool->add("b");
  pool->get(a);
  EXPECT_EQ(pool->open_files(), 1u);
  {
    FilePool::Use one(pool);
    {
      FilePool::Use other(pool);
      pool->get(b);
    }
    pool->close_unused();
    EXPECT_EQ(pool->open_files(), 2u);
  }
  EXPECT_EQ(pool->open_files(), 0u);
  pool->get(a);
  pool->close_unused();
  EXPECT_EQ(pool->open_files(), 0u);
}

TEST_F(FilePoolTest, a_fork_amid_the_work_of_threads_goes_on) {
  FilePool pool(posix_files(), at_most(1));
  const uint32_t a = pool.add("/proc/self/exe"), b = pool.add("/proc/./self/exe");
  std::atomic<bool> over{false};
  std::thread busy([&] {
    for (int i = 0; !over; ++i) pool.get(i % 2 == 0 ? a : b);
  });
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(
        testing::holds_in_child([&] { return pool.get(a)->size() == pool.get(b)->size(); }));
  }
  over = true;
  busy.join();
}

TEST_F(FilePoolTest, a_file_that_cannot_be_opened_is_an_error_each_time) {
  FilePool pool(files);
  const uint32_t gone = pool.add("gone"), a = pool.add("a");
  EXPECT_THROW(pool.get(gone), Error);
  EXPECT_THROW(pool.get(gone), Error);
  EXPECT_NE(pool.get(a), nullptr);
}

TEST_F(FilePoolTest, many_threads_share_few_files) {
  FilePool pool(files, at_most(1));
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
  for (uint32_t number : numbers) pool.get(number);  // at the last one, the others are unused
  EXPECT_EQ(pool.open_files(), 1u);
}

}  // namespace
}  // namespace penstock
