#include "penstock/memory/lease.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/memory/allocator.h"
#include "penstock/memory/region_layout.h"
#include "tests/cpp/memory/regions.h"

namespace penstock {
namespace {

using testing::kMiB;
using testing::region_of;

template <typename Body>
Code code_thrown_by(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "nothing was thrown";
  return Code::kClosed;
}

TEST(Lease, keeps_a_released_block_until_the_last_copy_is_gone) {
  Allocator allocator(region_of(64 * kMiB));
  for (size_t bytes : {100ul, 1000000ul}) {
    void* block = allocator.allocate(bytes);
    std::memset(block, 3, bytes);
    Lease lease = allocator.lease(block);
    EXPECT_EQ(lease.data(), block);
    EXPECT_EQ(lease.bytes(), bytes);
    EXPECT_EQ(Lease::outstanding(), 1u);
    allocator.release(block);
    EXPECT_EQ(allocator.stats().live_blocks, 1u);
    void* other = allocator.allocate(bytes);
    EXPECT_NE(other, block);
    allocator.release(other);
    Lease copy = lease;
    EXPECT_EQ(Lease::outstanding(), 1u);
    lease.reset();
    allocator.collect();
    EXPECT_EQ(allocator.stats().live_blocks, 1u);
    EXPECT_EQ(copy.data()[bytes - 1], std::byte{3});
    copy.reset();
    EXPECT_EQ(Lease::outstanding(), 0u);
    void* again = allocator.allocate(bytes);
    EXPECT_EQ(again, block) << "allocate collects what came back";
    allocator.release(again);
  }
}

TEST(Lease, several_leases_and_the_owner_count_together) {
  Allocator allocator(region_of(16 * kMiB));
  void* block = allocator.allocate(100);
  Lease a = allocator.lease(block);
  Lease b = allocator.lease(block);
  a.reset();
  b.reset();
  allocator.collect();
  EXPECT_EQ(allocator.bytes_of(block), 100u) << "the owner still holds it";
  Lease c = allocator.lease(block);
  allocator.release(block);
  EXPECT_EQ(allocator.share(block), std::nullopt) << "released";
  allocator.release(block);
  EXPECT_EQ(allocator.stats().bad_releases, 1u);
  EXPECT_EQ(allocator.bytes_of(block), 100u);
  c.reset();
  allocator.collect();
  EXPECT_EQ(allocator.stats().live_blocks, 0u);
}

TEST(Lease, a_block_that_was_released_can_be_shared_while_a_lease_is_out) {
  for (size_t bytes : {size_t{100}, kMiB}) {
    Allocator allocator(region_of(16 * kMiB));
    auto* block = static_cast<std::byte*>(allocator.allocate(bytes));
    Lease first = allocator.lease(block);
    allocator.release(block);
    std::optional<Ref> ref = allocator.share_holding(block + bytes / 2);
    ASSERT_TRUE(ref);
    EXPECT_EQ(ref->bytes, bytes);
    first.reset();
    allocator.collect();
    EXPECT_EQ(allocator.block_of(block), block) << "the second lease is out";
    Lease second(allocator.region(), *ref);
    EXPECT_EQ(second.data(), block);
    second.reset();
    EXPECT_EQ(allocator.share_holding(block), std::nullopt) << "the last lease came back";
    allocator.collect();
    EXPECT_EQ(allocator.share_holding(block), std::nullopt);
    EXPECT_EQ(allocator.stats().live_blocks, 0u);
    EXPECT_EQ(allocator.stats().stale_returns, 0u);
  }
}

TEST(Lease, an_owned_block_is_shared_by_any_address_in_it) {
  Allocator allocator(region_of(16 * kMiB));
  auto* block = static_cast<std::byte*>(allocator.allocate(5000));
  int outside = 0;
  EXPECT_EQ(allocator.share_holding(&outside), std::nullopt);
  Lease lease(allocator.region(), allocator.share_holding(block + 4999).value());
  EXPECT_EQ(lease.data(), block);
  allocator.release(block);
  EXPECT_EQ(allocator.stats().live_blocks, 1u);
  lease.reset();
  allocator.collect();
  EXPECT_EQ(allocator.stats().live_blocks, 0u);
}

TEST(Lease, a_reference_that_is_stale_or_nonsense_is_an_error_and_never_a_block) {
  auto region = region_of(16 * kMiB);
  Allocator allocator(region);
  void* block = allocator.allocate(100);
  Ref ref = allocator.share(block).value();
  auto refused = [&](Ref wrong) {
    return code_thrown_by([&] { Lease lease(region, wrong); }) == Code::kInternal;
  };
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused({ref.offset + 8, ref.bytes, ref.generation, 0}));
  EXPECT_TRUE(refused({ref.offset + 64, ref.bytes, ref.generation, 0})) << "another's header";
  EXPECT_TRUE(refused({ref.offset, ref.bytes, ref.generation + 1, 0}));
  EXPECT_TRUE(refused({ref.offset, ref.bytes + 1, ref.generation, 0}));
  EXPECT_TRUE(refused({8 * kMiB, ref.bytes, ref.generation, 0})) << "not committed";
  EXPECT_TRUE(refused({region->offset_of(block), 100, ref.generation, 0})) << "payload";
  EXPECT_EQ(code_thrown_by([&] { Lease lease(nullptr, ref); }), Code::kInternal);
  EXPECT_EQ(code_thrown_by([&] { Lease lease(region, {1ul << 60, 1, 1, 0}); }), Code::kOutOfMemory);
  EXPECT_EQ(Lease::outstanding(), 0u);
  { Lease lease(region, ref); }
  allocator.release(block);
  allocator.collect();
  EXPECT_EQ(allocator.stats().live_blocks, 0u);
  EXPECT_TRUE(refused(ref)) << "returned and reused";
}

TEST(Lease, stale_and_double_returns_are_counted_and_harm_nobody) {
  auto region = region_of(16 * kMiB);
  Allocator allocator(region);
  void* block = allocator.allocate(100);
  Ref first = allocator.share(block).value();
  allocator.release(block);
  region->return_lease(first);
  region->return_lease(first);  // already on the return stack
  EXPECT_EQ(region->stale_returns(), 1u);
  void* again = allocator.allocate(100);
  EXPECT_EQ(again, block);
  Ref second = allocator.share(again).value();
  EXPECT_NE(first.generation, second.generation);
  region->return_lease(first);  // of an earlier generation
  for (uint64_t offset : {0ul, 7ul, first.offset + 8, 1ul << 50, ~0ul, second.offset + 64}) {
    region->return_lease({offset, 100, second.generation, 0});
  }
  EXPECT_EQ(region->stale_returns(), 8u);
  allocator.collect();
  EXPECT_EQ(allocator.bytes_of(again), 100u) << "still ours";
  allocator.release(again);
  region->return_lease(second);
  allocator.collect();
  EXPECT_EQ(allocator.stats().live_blocks, 0u);
}

TEST(Lease, a_damaged_return_stack_or_header_is_noticed) {
  auto region = region_of(16 * kMiB);
  Allocator allocator(region);
  auto* region_header = reinterpret_cast<RegionHeader*>(region->base());
  void* block = allocator.allocate(100);
  Ref ref = allocator.share(block).value();
  for (uint64_t junk : {ref.offset, ref.offset + 64, ref.offset + 1, region->offset_of(block),
                        uint64_t{64}, ~uint64_t{0}}) {
    region_header->returned = junk;
    allocator.collect();
    EXPECT_EQ(allocator.bytes_of(block), 100u);
  }
  EXPECT_EQ(allocator.stats().stale_returns, 6u);

  // A chain that leads back to itself.
  void* other = allocator.allocate(100);
  Ref other_ref = allocator.share(other).value();
  allocator.release(block);
  allocator.release(other);
  region->return_lease(ref);
  region->return_lease(other_ref);
  region->header_at(ref.offset)->next = other_ref.offset;
  allocator.collect();
  EXPECT_EQ(allocator.stats().live_blocks, 0u);
  EXPECT_EQ(allocator.stats().stale_returns, 7u);

  // A count that was overwritten: only that block is lost.
  void* third = allocator.allocate(100);
  Ref third_ref = allocator.share(third).value();
  region->header_at(third_ref.offset)->state = 0;
  allocator.release(third);
  EXPECT_EQ(allocator.stats().bad_releases, 1u);
  EXPECT_NE(allocator.allocate(100), third);
}

TEST(Lease, outlives_its_allocator_at_the_cost_of_its_own_pages) {
  Lease lease;
  std::weak_ptr<Region> watch;
  {
    auto region = region_of(256 * kMiB);
    Allocator allocator(region);
    allocator.release(allocator.allocate(100 * kMiB));
    void* block = allocator.allocate(kMiB);
    std::memset(block, 5, kMiB);
    lease = allocator.lease(block);
    watch = region;
  }
  EXPECT_EQ(lease.data()[kMiB - 1], std::byte{5});
  EXPECT_LE(watch.lock()->backed_bytes(), 2 * kMiB);
  lease.reset();
  EXPECT_TRUE(watch.expired());
}

TEST(Lease, threads_hammering_one_allocator_find_their_stamps_and_leave_nothing) {
  auto region = region_of(256 * kMiB);
  Allocator allocator(region);
  auto reader = Region::open(region->fd());
  constexpr int kThreads = 4;
  constexpr int kSteps = 4000;
  std::atomic<int> wrong{0};
  std::mutex mutex;
  std::vector<std::pair<Lease, uint64_t>> exchange;  // leases end on other threads
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      for (int i = 0; i < kSteps; ++i) {
        size_t bytes = 16 + random() % (i % 16 == 0 ? 2000000 : 20000);
        auto* block = static_cast<std::byte*>(allocator.allocate(bytes));
        if (block == nullptr) continue;
        uint64_t stamp = random();
        std::memcpy(block, &stamp, 8);
        std::memcpy(block + bytes - 8, &stamp, 8);
        auto ref = allocator.share(block);
        Lease lease(random() % 2 ? region : reader, *ref);
        allocator.release(block);
        std::pair<Lease, uint64_t> taken;
        {
          std::lock_guard lock(mutex);
          exchange.emplace_back(std::move(lease), stamp);
          if (exchange.size() > 32) {
            std::swap(exchange[random() % exchange.size()], exchange.back());
            taken = std::move(exchange.back());
            exchange.pop_back();
          }
        }
        if (taken.first) {
          const std::byte* data = taken.first.data();
          if (std::memcmp(data, &taken.second, 8) != 0 ||
              std::memcmp(data + taken.first.bytes() - 8, &taken.second, 8) != 0) {
            ++wrong;
          }
        }
        if (t == 0 && i % 64 == 0) allocator.trim();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  exchange.clear();
  allocator.collect();
  auto stats = allocator.stats();
  EXPECT_EQ(stats.live_blocks, 0u);
  EXPECT_EQ(stats.live_bytes, 0u);
  EXPECT_EQ(stats.failures, 0u);
  EXPECT_EQ(stats.bad_releases + stats.stale_returns, 0u);
  EXPECT_EQ(Lease::outstanding(), 0u);
}

}  // namespace
}  // namespace penstock
