// Decoded pieces that threads share: each is decoded once as long as it fits.
#include "penstock/pipeline/sources/decoded_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

namespace penstock {
namespace {

using Cache = DecodedCache<const uint64_t>;

struct DecodedCaches : ::testing::Test {
  Cache::Decode decode(uint64_t number, uint64_t bytes = 10) {
    return [=, this] {
      decoded.push_back(number);
      return Cache::Decoded{std::make_shared<const uint64_t>(number), bytes};
    };
  }
  uint64_t get(Cache& cache, uint64_t number) { return *cache.get(number, decode(number)); }

  std::vector<uint64_t> decoded;
};

TEST_F(DecodedCaches, the_least_recently_used_piece_goes_first) {
  Cache cache(30);
  for (uint64_t number : {1, 2, 3, 1, 4, 1, 3}) EXPECT_EQ(get(cache, number), number);
  EXPECT_EQ(decoded, (std::vector<uint64_t>{1, 2, 3, 4}));
  get(cache, 2);
  EXPECT_EQ(decoded.back(), 2u);
}

TEST_F(DecodedCaches, one_piece_stays_whatever_its_size) {
  Cache cache(5);
  for (uint64_t number : {1, 1, 2, 2, 1}) get(cache, number);
  EXPECT_EQ(decoded, (std::vector<uint64_t>{1, 2, 1}));
}

TEST_F(DecodedCaches, a_dropped_piece_stays_with_those_who_hold_it) {
  Cache cache(10);
  const auto held = cache.get(1, decode(1));
  std::weak_ptr<const uint64_t> other = cache.get(2, decode(2));
  get(cache, 3);
  EXPECT_EQ(*held, 1u);
  EXPECT_TRUE(other.expired());
}

TEST_F(DecodedCaches, nothing_is_decoded_ahead_in_place_of_another) {
  Cache cache(30);
  get(cache, 1);
  EXPECT_EQ(cache.ahead(2, 10, decode(2)), Cache::Ahead::kDecoded);
  EXPECT_EQ(cache.ahead(2, 10, decode(2)), Cache::Ahead::kThere);
  EXPECT_EQ(cache.ahead(3, 11, decode(3)), Cache::Ahead::kNoRoom);
  get(cache, 2);
  get(cache, 1);
  EXPECT_EQ(decoded, (std::vector<uint64_t>{1, 2}));
}

TEST_F(DecodedCaches, it_takes_what_is_there_or_has_space) {
  Cache cache(30);
  get(cache, 1);
  get(cache, 2);
  EXPECT_TRUE(cache.takes(3, 10));
  EXPECT_FALSE(cache.takes(3, 11));
  EXPECT_TRUE(cache.takes(2, 31));
}

TEST_F(DecodedCaches, a_failure_is_of_its_caller_and_others_try_again) {
  Cache cache(30);
  const auto fail = []() -> Cache::Decoded { throw std::runtime_error("damaged"); };
  EXPECT_THROW(cache.get(1, fail), std::runtime_error);
  EXPECT_THROW(cache.ahead(1, 10, fail), std::runtime_error);
  EXPECT_EQ(get(cache, 1), 1u);
  EXPECT_EQ(cache.ahead(2, 20, decode(2)), Cache::Ahead::kDecoded);
}

TEST_F(DecodedCaches, a_piece_in_the_works_is_waited_for_or_passed_over) {
  Cache cache(30);
  std::promise<void> begun, go_on;
  std::thread worker([&] {
    cache.get(1, [&] {
      begun.set_value();
      go_on.get_future().wait();
      return Cache::Decoded{std::make_shared<const uint64_t>(1), 10};
    });
  });
  begun.get_future().wait();
  EXPECT_EQ(cache.try_get(1, decode(1)), nullptr);
  EXPECT_EQ(cache.ahead(1, 10, decode(1)), Cache::Ahead::kThere);
  EXPECT_EQ(*cache.try_get(2, decode(2)), 2u);
  auto waiting = std::async(std::launch::async, [&] { return *cache.get(1, decode(1)); });
  go_on.set_value();
  EXPECT_EQ(waiting.get(), 1u);
  worker.join();
  EXPECT_EQ(decoded, (std::vector<uint64_t>{2}));
}

TEST_F(DecodedCaches, many_threads_decode_each_piece_once) {
  constexpr uint64_t kPieces = 200;
  Cache cache(kPieces * 10);
  std::vector<std::atomic<int>> times(kPieces);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (uint64_t number = 0; number < kPieces; ++number) {
        const auto piece = cache.get(number, [&] {
          ++times[number];
          return Cache::Decoded{std::make_shared<const uint64_t>(number), 10};
        });
        ASSERT_EQ(*piece, number);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& count : times) EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace penstock
