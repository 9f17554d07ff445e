#include "penstock/train/ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "penstock/train/channel_memory.h"
#include "tests/cpp/memory/child.h"

namespace penstock::train {
namespace {

#ifdef PENSTOCK_SANITIZED
constexpr uint64_t kRecords = 20'000;
#else
constexpr uint64_t kRecords = 50'000;
#endif

struct Memory {
  explicit Memory(WhenFull when_full)
      : memory(ChannelMemory::make(4096, when_full)),
        mapping((memory->open_row(0), memory->map_ring(0))),
        ring(&memory->words(0), mapping.data(), memory->capacity(),
             when_full == WhenFull::kDropOldest) {}
  std::shared_ptr<ChannelMemory> memory;
  RingMapping mapping;
  Ring ring;
};

// A record of `bytes` bytes whose words are its number.
std::vector<uint64_t> a_record(uint64_t number, uint64_t bytes) {
  std::vector<uint64_t> record(bytes / 8, number);
  record[0] = bytes;
  record[1] = 0;
  return record;
}

void put(Ring& ring, uint64_t number, uint64_t bytes) {
  const auto record = a_record(number, bytes);
  if (ring.contended()) {
    ring.make_space(bytes);
    ring.write(reinterpret_cast<const std::byte*>(record.data()), bytes);
  } else {
    std::memcpy(ring.tail_data(), record.data(), bytes);
  }
  ring.put(bytes);
}

// The next record's number, or 0 if none could be taken. Clears `whole` if the record is a mixture.
uint64_t take(Ring& ring, bool& whole) {
  Ring::Record record;
  if (!ring.front(record)) return 0;
  whole &= record.valid;
  std::vector<uint64_t> words(record.bytes / 8);
  ring.copy(record, 0, words.data(), record.bytes);
  if (!ring.take(record)) return 0;
  for (uint64_t i = 2; i < words.size(); ++i) whole &= words[i] == words[2];
  return words[2];
}

uint64_t size_of_record(std::mt19937_64& random) { return 64 * (1 + random() % 20); }

TEST(Ring, is_empty_then_full_then_empty_at_every_place_of_its_end) {
  Memory m(WhenFull::kBlock);
  bool whole = true;
  for (uint64_t shift = 0; shift < 64; ++shift) {
    EXPECT_EQ(m.ring.queued(), 0u);
    EXPECT_TRUE(m.ring.has_space(4096));
    put(m.ring, 2 * shift + 1, 4096);  // wraps around, except the first
    EXPECT_EQ(m.ring.queued(), 1u);
    EXPECT_EQ(m.ring.queued_bytes(), 4096u);
    EXPECT_FALSE(m.ring.has_space(64));
    EXPECT_EQ(take(m.ring, whole), 2 * shift + 1);
    put(m.ring, 2 * shift + 2, 64);
    EXPECT_FALSE(m.ring.has_space(4096));
    EXPECT_TRUE(m.ring.has_space(4032));
    EXPECT_EQ(take(m.ring, whole), 2 * shift + 2);
    EXPECT_EQ(take(m.ring, whole), 0u);
  }
  EXPECT_TRUE(whole);
}

TEST(Ring, a_writer_and_a_reader_lose_nothing_and_keep_the_order) {
  Memory m(WhenFull::kBlock);
  std::thread writer([&] {
    std::mt19937_64 random(1);
    for (uint64_t number = 1; number <= kRecords; ++number) {
      const uint64_t bytes = size_of_record(random);
      while (!m.ring.has_space(bytes)) std::this_thread::yield();
      put(m.ring, number, bytes);
    }
  });
  bool whole = true;
  uint64_t wrong = 0;
  for (uint64_t number = 1; number <= kRecords;) {
    const uint64_t got = take(m.ring, whole);
    if (got == 0) {
      std::this_thread::yield();
      continue;
    }
    wrong += got != number++;
  }
  writer.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_TRUE(whole);
  EXPECT_EQ(m.ring.queued(), 0u);
}

TEST(Ring, dropped_and_taken_records_are_all_records_and_none_is_torn) {
  Memory m(WhenFull::kDropOldest);
  std::atomic<bool> over{false};
  std::thread writer([&] {
    std::mt19937_64 random(1);
    for (uint64_t number = 1; number <= kRecords; ++number) {
      put(m.ring, number, size_of_record(random));
    }
    over.store(true);
  });
  bool whole = true, ascending = true;
  uint64_t last = 0, taken = 0;
  for (;;) {
    const bool was_over = over.load();
    const uint64_t got = take(m.ring, whole);
    if (got == 0 && was_over) break;
    if (got == 0) continue;
    ascending &= got > last;
    last = got;
    ++taken;
  }
  writer.join();
  EXPECT_TRUE(whole);
  EXPECT_TRUE(ascending);
  EXPECT_EQ(last, kRecords) << "the newest is never dropped";
  EXPECT_EQ(m.ring.head().count, kRecords);
  EXPECT_GE(taken, 1u);
}

TEST(Ring, a_record_with_invalid_sizes_is_detected) {
  Memory m(WhenFull::kBlock);
  auto record = a_record(7, 128);
  for (auto [bytes, spec_bytes] : {std::pair<uint64_t, uint64_t>{100, 0},
                                   {0, 0},
                                   {8192, 0},
                                   {UINT64_MAX - 63, 0},
                                   {128, 113},
                                   {128, UINT64_MAX}}) {
    record[0] = bytes;
    record[1] = spec_bytes;
    std::memcpy(m.ring.tail_data(), record.data(), 128);
    m.ring.put(128);
    Ring::Record seen;
    ASSERT_TRUE(m.ring.front(seen));
    EXPECT_FALSE(seen.valid) << bytes << " " << spec_bytes;
    seen.bytes = 128;
    EXPECT_TRUE(m.ring.take(seen));
  }
}

TEST(Ring, corrupt_words_are_detected) {
  for (uint64_t head : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 27, (uint64_t{1} << 28) - 1}) {
    for (uint64_t tail : {uint64_t{0}, uint64_t{2}, uint64_t{1} << 27, (uint64_t{1} << 28) - 1}) {
      Memory m(WhenFull::kBlock);
      const auto record = a_record(7, 4096);
      std::memcpy(m.ring.tail_data(), record.data(), 4096);
      m.memory->words(0).head.store(head << Ring::kCountBits);
      m.memory->words(0).tail.store(tail << Ring::kCountBits | 1);
      EXPECT_LE(m.ring.queued_bytes(), 4096u);
      Ring::Record seen;
      ASSERT_TRUE(m.ring.front(seen));
      EXPECT_EQ(seen.valid, head == 0 && (tail == 0 || tail > 63)) << head << " " << tail;
    }
  }
}

// The learner's process can write all of the memory.
TEST(Ring, a_producer_stays_inside_the_ring_whatever_its_words_are) {
  const std::vector<uint64_t> places{0, 1, 63, 64, uint64_t{1} << 27, (uint64_t{1} << 28) - 1};
  for (const WhenFull when_full : {WhenFull::kBlock, WhenFull::kDropOldest}) {
    for (const uint64_t head : places) {
      for (const uint64_t tail : places) {
        for (const uint64_t size : {uint64_t{0}, uint64_t{7}, ~uint64_t{0}}) {  // of its records
          Memory m(when_full);
          for (uint64_t at = 0; at < 4096; at += 64) {
            std::memcpy(m.mapping.data() + at, &size, sizeof(size));
          }
          m.memory->words(0).head.store(head << Ring::kCountBits);
          m.memory->words(0).tail.store(tail << Ring::kCountBits | 5);
          if (m.ring.contended() || m.ring.has_space(1280)) put(m.ring, 9, 1280);
          EXPECT_GE(m.ring.tail_data(), m.mapping.data());
          EXPECT_LT(m.ring.tail_data(), m.mapping.data() + 4096);
        }
      }
    }
  }
}

TEST(Ring, a_record_longer_than_the_ring_is_detected_for_any_tail) {
  Memory m(WhenFull::kBlock);
  const auto record = a_record(7, 4096);
  std::memcpy(m.ring.tail_data(), record.data(), 4096);
  const uint64_t longer = 1 << 20;
  std::memcpy(m.ring.tail_data(), &longer, sizeof(longer));
  m.memory->words(0).tail.store(uint64_t{1} << 27 << Ring::kCountBits | 1);
  Ring::Record seen;
  ASSERT_TRUE(m.ring.front(seen));
  EXPECT_FALSE(seen.valid);
}

}  // namespace
}  // namespace penstock::train
