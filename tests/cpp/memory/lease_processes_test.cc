// Leases in processes other than the allocator's: children, killed owners, forks.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "penstock/memory/allocator.h"
#include "penstock/memory/lease.h"
#include "tests/cpp/memory/child.h"
#include "tests/cpp/memory/regions.h"

namespace penstock {
namespace {

using testing::Gate;
using testing::holds_in_child;
using testing::kMiB;
using testing::region_of;
using testing::start_child;
using testing::status_of;

TEST(Lease, a_block_made_in_a_child_is_read_here_and_comes_back_to_it) {
  Gate to_parent, to_child;
  pid_t child = start_child([&] {
    auto region = region_of(64 * kMiB);
    Allocator allocator(region);
    void* block = allocator.allocate(kMiB);
    std::memset(block, 77, kMiB);
    Ref ref = allocator.share(block).value();
    allocator.release(block);
    bool busy = allocator.allocate(kMiB) != block;
    int fd = region->fd();
    char returned = 0;
    to_parent.send(fd);
    to_parent.send(ref);
    to_child.receive(returned);
    return busy && returned == 1 && allocator.allocate(kMiB) == block;
  });
  int fd = -1;
  Ref ref;
  ASSERT_TRUE(to_parent.receive(fd) && to_parent.receive(ref));
  std::string path = "/proc/" + std::to_string(child) + "/fd/" + std::to_string(fd);
  os::Fd opened(open(path.c_str(), O_RDWR));
  ASSERT_TRUE(opened);
  {
    Lease lease(Region::open(opened.get()), ref);
    EXPECT_EQ(lease.data()[kMiB - 1], std::byte{77});
    std::thread([moved = std::move(lease)]() mutable { moved.reset(); }).join();
  }
  to_child.send(char{1});
  EXPECT_EQ(status_of(child), 0);
}

TEST(Lease, views_outlive_a_killed_owner) {
  Gate to_parent;
  pid_t child = start_child([&] {
    auto region = region_of(64 * kMiB);
    Allocator allocator(region);
    void* block = allocator.allocate(kMiB);
    std::memset(block, 78, kMiB);
    Ref ref = allocator.share(block).value();
    to_parent.send(region->fd());
    to_parent.send(ref);
    pause();
    return true;
  });
  int fd = -1;
  Ref ref;
  ASSERT_TRUE(to_parent.receive(fd) && to_parent.receive(ref));
  std::string path = "/proc/" + std::to_string(child) + "/fd/" + std::to_string(fd);
  os::Fd opened(open(path.c_str(), O_RDWR));
  ASSERT_TRUE(opened);
  Lease lease(Region::open(opened.get()), ref);
  opened.reset();
  kill(child, SIGKILL);
  EXPECT_NE(status_of(child), 0);
  for (size_t i = 0; i < kMiB; i += 512) ASSERT_EQ(lease.data()[i], std::byte{78});
  lease.data()[0] = std::byte{1};  // and is writeable
  lease.reset();
}

TEST(Lease, thousands_of_blocks_go_to_another_process_and_come_back_whole) {
  constexpr int kBlocks = 20000;
  struct Message {
    Ref ref;
    uint64_t stamp;
  };
  auto region = region_of(64 * kMiB);  // small, so blocks are reused often
  Gate to_child;
  pid_t child = start_child([&] {
    auto mine = Region::open(region->fd());
    std::mt19937_64 random(5);
    std::vector<std::pair<Lease, uint64_t>> held;
    bool right = true;
    auto check = [&](size_t which) {
      auto& [lease, stamp] = held[which];
      right &= std::memcmp(lease.data(), &stamp, 8) == 0 &&
               std::memcmp(lease.data() + lease.bytes() - 8, &stamp, 8) == 0;
      std::swap(held[which], held.back());
      held.pop_back();
    };
    for (int i = 0; i < kBlocks; ++i) {
      Message message;
      if (!to_child.receive(message)) return false;
      held.emplace_back(Lease(mine, message.ref), message.stamp);
      while (held.size() > random() % 40) check(random() % held.size());
    }
    while (!held.empty()) check(held.size() - 1);
    return right;
  });
  Allocator allocator(region);
  std::mt19937_64 random(6);
  for (int i = 0; i < kBlocks; ++i) {
    size_t bytes = 16 + random() % (i % 8 == 0 ? 1000000 : 10000);
    std::byte* block = nullptr;
    std::optional<Ref> ref;
    while (!ref) {  // until the child has returned enough, also for the record of leases
      allocator.release(block);
      block = static_cast<std::byte*>(allocator.allocate(bytes));
      if (block != nullptr) ref = allocator.share(block);
    }
    Message message{*ref, random()};
    std::memcpy(block, &message.stamp, 8);
    std::memcpy(block + bytes - 8, &message.stamp, 8);
    allocator.release(block);
    ASSERT_TRUE(to_child.send(message));
  }
  EXPECT_EQ(status_of(child), 0);
  allocator.collect();
  auto stats = allocator.stats();
  EXPECT_EQ(stats.live_blocks, 0u);
  EXPECT_EQ(stats.bad_releases + stats.stale_returns, 0u);
}

TEST(Lease, a_forked_childs_copies_return_nothing) {
  auto region = region_of(64 * kMiB);
  Allocator allocator(region);
  auto reader = Region::open(region->fd());
  void* block = allocator.allocate(1000);
  std::memset(block, 1, 1000);
  Lease own = allocator.lease(block);
  Lease foreign(reader, allocator.share(block).value());
  allocator.release(block);
  EXPECT_TRUE(holds_in_child([&] {
    bool reads = own.data()[999] == std::byte{1} && foreign.data()[999] == std::byte{1};
    foreign.data()[999] = std::byte{2};
    own.reset();
    foreign.reset();
    return reads;
  }));
  allocator.collect();
  EXPECT_EQ(allocator.stats().live_blocks, 1u);
  EXPECT_EQ(own.data()[999], std::byte{1});
  own.reset();
  foreign.reset();
  allocator.collect();
  EXPECT_EQ(allocator.stats().live_blocks, 0u);
  EXPECT_EQ(allocator.stats().stale_returns, 0u);
}

TEST(Lease, a_fork_while_threads_allocate_leaves_both_processes_working) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer does not follow a fork of a process with threads";
#endif
  auto region = region_of(64 * kMiB);
  Allocator allocator(region);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      while (!stop) {
        void* block = allocator.allocate(5000);
        Lease lease = allocator.lease(block);
        allocator.release(block);
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(holds_in_child([&] {
      allocator.release(allocator.region()->base());
      return allocator.allocate(100) == nullptr;
    }));
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  allocator.collect();
  EXPECT_EQ(allocator.stats().live_blocks, 0u);
}

}  // namespace
}  // namespace penstock
