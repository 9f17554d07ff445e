#include "penstock/train/weights_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <thread>
#include <vector>

#include "penstock/train/publisher.h"
#include "tests/cpp/memory/child.h"
#include "tests/cpp/train/publishing.h"
#include "tests/cpp/train/refusals.h"

// The protocol of section 5 of docs/training.md in one mapping, so that the thread sanitizer checks
// all of it.
namespace penstock::train {
namespace {

using testing::message_of;
using testing::two_blocks;

SlotWriter::Write filled(const Layout&, uint64_t version) {
  return [=](std::span<float> to) { std::ranges::fill(to, static_cast<float>(version)); };
}

uint64_t backed_bytes(int fd) {
  struct stat file {};
  fstat(fd, &file);
  return static_cast<uint64_t>(file.st_blocks) * 512;
}

TEST(WeightsMemory, has_nothing_before_the_first_version) {
  const auto memory = WeightsMemory::make(two_blocks());
  memory->use_rows(1);
  EXPECT_FALSE(memory->newest());
  EXPECT_FALSE(memory->hold(0));
  EXPECT_EQ(memory->held(), 0u);
  SlotWriter writer(memory);
  ASSERT_TRUE(writer.publish(filled(memory->layout(), 0), 0));
  EXPECT_EQ(memory->newest()->number, 0u) << "a version of 0 is a version";
  EXPECT_TRUE(memory->hold(0));
  EXPECT_NE(memory->held(), 0u);
}

TEST(WeightsMemory, versions_are_whole_and_no_slot_is_written_while_it_is_held) {
  const auto memory = WeightsMemory::make(two_blocks(200));
  constexpr uint32_t kRows = 2, kThreads = 2;
#ifdef PENSTOCK_SANITIZED
  constexpr int kReads = 3000;
#else
  constexpr int kReads = 100'000;
#endif
  memory->use_rows(kRows);
  SlotWriter writer(memory);
  ASSERT_TRUE(writer.publish(filled(memory->layout(), 1), 1));
  std::atomic<int> left{kRows * kThreads};
  std::atomic<int> torn{0}, backwards{0};
  std::vector<std::thread> readers;
  for (uint32_t i = 0; i < kRows * kThreads; ++i) {
    readers.emplace_back([&, row = i % kRows] {
      uint64_t last = 0;
      for (int read = 0; read < kReads || last <= 2; ++read) {
        const auto held = memory->hold(row);
        const auto values = memory->values(held->slot);
        const auto expected = static_cast<float>(held->number);
        if (!std::ranges::all_of(values, [&](float x) { return x == expected; })) ++torn;
        if (held->number < last) ++backwards;
        last = held->number;
        memory->release(row, held->slot);
      }
      --left;
    });
  }
  uint64_t version = 1;
  uint32_t most = 0;
  while (left > 0) {
    ++version;
    ASSERT_TRUE(writer.publish(filled(memory->layout(), version), version));
    most = std::max(most, writer.backed());
  }
  for (auto& thread : readers) thread.join();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(backwards, 0);
  EXPECT_LE(most, kRows * kThreads + 2) << "as many as are held, the current one, and one more";
  EXPECT_EQ(memory->held(), 0u);
  EXPECT_GT(version, 2u);
}

TEST(WeightsMemory, a_sleeper_is_woken_by_every_version) {
  const auto memory = WeightsMemory::make(two_blocks(16));
  memory->use_rows(1);
  SlotWriter writer(memory);
  constexpr uint64_t kVersions = 2000;
  std::atomic<uint64_t> seen{0};
  std::thread reader([&] {
    for (uint64_t version = 1; version <= kVersions; ++version) {
      auto there = [&] { return memory->newest() && memory->newest()->number >= version; };
      while (!there()) memory->sleep(0, -1, there);  // for ever: a lost wake would hang
      seen = version;
    }
  });
  for (uint64_t version = 1; version <= kVersions; ++version) {
    ASSERT_TRUE(writer.publish(filled(memory->layout(), version), version));
    while (seen < version) std::this_thread::yield();
  }
  reader.join();
}

TEST(WeightsMemory, sleepers_wake_each_other) {
  const auto memory = WeightsMemory::make(two_blocks(16));
  constexpr uint32_t kRows = 3, kSleepers = 7;
  memory->use_rows(kRows);
  SlotWriter writer(memory);
#ifdef PENSTOCK_SANITIZED
  constexpr uint64_t kVersions = 300;
#else
  constexpr uint64_t kVersions = 3000;
#endif
  std::atomic<uint64_t> seen{0};  // versions seen by all threads
  std::vector<std::thread> readers;
  for (uint32_t i = 0; i < kSleepers; ++i) {
    readers.emplace_back([&, row = i % kRows] {
      for (uint64_t version = 1; version <= kVersions; ++version) {
        auto there = [&] { return memory->newest() && memory->newest()->number >= version; };
        while (!there()) memory->sleep(row, -1, there);  // for ever: a lost wake would hang
        ++seen;
      }
    });
  }
  for (uint64_t version = 1; version <= kVersions; ++version) {
    ASSERT_TRUE(writer.publish(filled(memory->layout(), version), version));
    EXPECT_LE(writer.sleepers(), kSleepers);
    while (seen < version * kSleepers) std::this_thread::yield();
  }
  for (auto& thread : readers) thread.join();
}

TEST(SlotWriter, takes_one_more_slot_for_each_version_that_is_held_and_gives_it_back) {
  const auto memory = WeightsMemory::make(two_blocks(1 << 16));
  memory->use_rows(1);
  SlotWriter writer(memory);
  const auto values = filled(memory->layout(), 7);
  uint64_t version = 0;
  auto publish = [&](uint64_t times) {
    for (uint64_t i = 0; i < times; ++i) ASSERT_TRUE(writer.publish(values, ++version));
  };
  publish(10);
  EXPECT_EQ(writer.backed(), 2u);
  std::vector<WeightsMemory::Version> held;
  for (int i = 0; i < 5; ++i) {
    held.push_back(*memory->hold(0));
    held.push_back(*memory->hold(0));  // the same once more
    publish(3);
  }
  EXPECT_EQ(writer.backed(), 7u);
  const uint64_t before = backed_bytes(memory->fd());
  publish(2 * SlotWriter::kWindow);
  EXPECT_EQ(writer.backed(), 7u) << "what is needed stays";
  for (const auto& each : held) memory->release(0, each.slot);
  publish(2 * SlotWriter::kWindow);
  EXPECT_EQ(writer.backed(), 2u);
  EXPECT_LE(backed_bytes(memory->fd()), before - 5 * memory->slot_bytes());
  EXPECT_EQ(memory->values(memory->newest()->slot)[0], 7) << "not the current one's";
}

TEST(SlotWriter, reports_when_every_slot_is_held_and_continues_when_one_is_released) {
  const auto memory = WeightsMemory::make(two_blocks(16));
  memory->use_rows(1);
  SlotWriter writer(memory);
  const auto values = filled(memory->layout(), 1);
  uint64_t version = 0;
  ASSERT_TRUE(writer.publish(values, ++version));
  auto oldest = memory->hold(0);
  while (writer.publish(values, version + 1)) {
    ++version;
    ASSERT_TRUE(memory->hold(0));
    ASSERT_LT(version, 1000u);
  }
  EXPECT_EQ(version, kSlots);
  EXPECT_EQ(memory->newest()->number, version);
  memory->release(0, oldest->slot);
  EXPECT_TRUE(writer.publish(values, ++version));
  memory->clear(0);
  EXPECT_EQ(memory->held(), 0u);
}

TEST(WeightsMemory, open_maps_versions_read_only_and_knows_their_layout) {
  const auto memory = WeightsMemory::make(two_blocks());
  SlotWriter writer(memory);
  ASSERT_TRUE(writer.publish(filled(memory->layout(), 3), 3));
  const auto same = WeightsMemory::open(os::Fd(dup(memory->fd())));
  EXPECT_EQ(same->layout(), memory->layout());
  memory->use_rows(1);
  const auto held = same->hold(0);
  ASSERT_TRUE(held);
  EXPECT_EQ(same->values(held->slot)[2999], 3);
  EXPECT_EQ(memory->held(), uint64_t{1} << held->slot);
#ifndef PENSTOCK_SANITIZED
  const int status = penstock::testing::status_of(penstock::testing::start_child([&] {
    same->values(held->slot)[0] = 1;
    return true;
  }));
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
#endif
}

TEST(WeightsMemory, open_refuses_other_memory) {
  const auto memory = WeightsMemory::make(two_blocks());
  auto refused = [](os::Fd fd) {
    return message_of(Code::kInvalidArgument, [&] { WeightsMemory::open(std::move(fd)); });
  };
  const uint64_t end = memory->offset_of(0);
  // The same bytes with `change` made to them.
  auto changed = [&](size_t at, uint64_t to, uint64_t length) {
    os::Fd fd = os::memory_file("changed");
    os::resize_file(fd.get(), length);
    std::vector<char> bytes(std::min(end, length));
    EXPECT_EQ(pread(memory->fd(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
    std::memcpy(bytes.data() + at, &to, sizeof(to));
    EXPECT_EQ(pwrite(fd.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    return fd;
  };
  uint64_t words[5];
  ASSERT_EQ(pread(memory->fd(), words, sizeof(words), 0), static_cast<ssize_t>(sizeof(words)));
  EXPECT_NO_THROW(WeightsMemory::open(changed(0, words[0], end)));
  EXPECT_NE(refused(changed(0, 1, end)).find("wrong magic number"), std::string::npos);
  refused(changed(8, words[1] + 1, end));
  refused(changed(16, words[2] - 1, end));
  refused(changed(16, ~uint64_t{0}, end));
  refused(changed(24, words[3] + 4096, end));
  refused(changed(24, 8, end));
  refused(changed(32, words[4] * 2, end));
  refused(changed(0, words[0], end - 4096));
  refused(changed(0, words[0], 4096));
  refused(os::memory_file("empty"));
  refused(os::Fd(::open("/dev/null", O_RDWR | O_CLOEXEC)));
}

// A learner's process can write anything into the current word.
TEST(WeightsMemory, a_slot_that_does_not_exist_is_damage) {
  const auto memory = WeightsMemory::make(two_blocks());
  memory->use_rows(1);
  auto* base = reinterpret_cast<std::byte*>(memory->values(0).data()) - memory->offset_of(0);
  reinterpret_cast<WeightsHeader*>(base)->current.store(7 << 7 | kSlots << 1 | 1);
  message_of(Code::kDataLoss, [&] { memory->hold(0); });
  message_of(Code::kDataLoss, [&] { memory->newest(); });
}

TEST(WeightsMemory, too_much_is_an_error) {
  message_of(Code::kOutOfMemory, [] { WeightsMemory::make(Layout{{"w", {1l << 56}}}); });
}

}  // namespace
}  // namespace penstock::train
