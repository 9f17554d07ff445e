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
  Cache::Decode decode(uint64_t number, uint64_t bytes = 10, uint64_t rows = 4) {
    return [=, this] {
      decoded.push_back(number);
      return Cache::Decoded{std::make_shared<const uint64_t>(number), bytes, rows};
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

TEST_F(DecodedCaches, what_was_used_up_last_goes_first) {
  Cache cache(30);
  for (uint64_t number : {1, 2, 3}) get(cache, number);
  cache.used(3, 4);
  cache.used(2, 3);
  cache.used(1, 4);
  cache.used(2, 1);  // after 1
  get(cache, 4);     // for 2
  get(cache, 5);     // for 1
  for (uint64_t number : {3, 4, 5}) get(cache, number);
  EXPECT_EQ(decoded, (std::vector<uint64_t>{1, 2, 3, 4, 5}));
  get(cache, 6);  // for 3, although it was asked for after 4 and 5
  get(cache, 3);  // for 4: none is used up
  EXPECT_EQ(decoded, (std::vector<uint64_t>{1, 2, 3, 4, 5, 6, 3}));
  get(cache, 5);
  EXPECT_EQ(decoded.size(), 7u);
}

TEST_F(DecodedCaches, a_pass_through_more_than_fits_finds_a_part_again) {
  constexpr uint64_t kPieces = 20;
  Cache cache(50);
  size_t before = 0;
  for (int epoch = 0; epoch < 4; ++epoch) {
    before = decoded.size();
    for (uint64_t number = 0; number < kPieces; ++number) {
      for (int half = 0; half < 2; ++half) {
        get(cache, number);
        cache.used(number, 2);
      }
    }
  }
  EXPECT_EQ(decoded.size() - before, kPieces - 5);  // as many as fit are found again
}

TEST_F(DecodedCaches, a_piece_of_the_epoch_before_is_in_use_again) {
  Cache cache(20);
  get(cache, 1);
  cache.used(1, 4);
  get(cache, 2);
  cache.used(2, 4);
  get(cache, 1);
  cache.used(1, 1);
  get(cache, 3);  // for 2
  get(cache, 1);
  EXPECT_EQ(decoded, (std::vector<uint64_t>{1, 2, 3}));
  cache.used(7, 1);  // which is not there
}

TEST_F(DecodedCaches, what_is_decoded_ahead_takes_the_place_of_what_is_used_up) {
  Cache cache(20);
  get(cache, 1);
  get(cache, 2);
  EXPECT_EQ(cache.ahead(3, 10, decode(3)), Cache::Ahead::kNoRoom);
  cache.used(2, 4);
  EXPECT_EQ(cache.ahead(3, 10, decode(3)), Cache::Ahead::kDecoded);
  for (uint64_t number : {1, 3}) get(cache, number);
  EXPECT_EQ(decoded, (std::vector<uint64_t>{1, 2, 3}));
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
