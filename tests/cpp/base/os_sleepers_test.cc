#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "penstock/base/clock.h"
#include "penstock/base/os.h"

namespace penstock::os {
namespace {

TEST(Futex, a_wake_concerns_the_groups_it_names) {
  std::atomic<uint32_t> word{0};
  std::atomic<int> woken{0};
  std::thread sleeper([&] {
    while (word.load() == 0) {
      if (futex_wait_bitset(word, 0, 20'000'000'000, 0b100) == Woken::kWoken) ++woken;
    }
  });
  // These calls do not affect the thread, whether it already sleeps or not.
  for (int i = 0; i < 1000; ++i) {
    futex_wake_bitset(word, 1, 0b1011);
    std::this_thread::yield();
  }
  EXPECT_EQ(woken, 0);
  while (woken == 0) {
    futex_wake_bitset(word, 1, 0b110);
    std::this_thread::yield();
  }
  word.store(1);
  futex_wake_bitset(word, 1, 0b100);
  sleeper.join();
}

TEST(Timer, is_readable_when_the_time_is_over_and_not_before) {
  Fd fd = timer();
  Poller poller;
  poller.add(fd.get(), 42);
  uint64_t tags[4];
  EXPECT_EQ(poller.wait(0, tags), 0u);
  for (int i = 0; i < 2; ++i) {
    const uint64_t start = now_ns();
    set_timer(fd.get(), 2'000'000);
    ASSERT_EQ(poller.wait(20'000'000'000, tags), 1u);
    EXPECT_GE(now_ns() - start, 2'000'000u);
    EXPECT_EQ(tags[0], 42u);
    clear_event(fd.get());
    EXPECT_EQ(poller.wait(0, tags), 0u);
  }
}

}  // namespace
}  // namespace penstock::os
