#include "penstock/observe/counters.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace penstock {
namespace {

TEST(Counters, zero_bytes_are_zero_counters) {
  alignas(64) unsigned char memory[sizeof(WorkerCounters)];
  std::memset(memory, 0, sizeof memory);
  WorkerCounters counters;
  EXPECT_EQ(std::memcmp(memory, static_cast<void*>(&counters), sizeof memory), 0);
}

TEST(Counters, hold_nothing_but_counters_and_padding) {
  const size_t worker = 8 * (WorkerCounters::fields().size() + 2 * kCopyReasons);
  EXPECT_GE(sizeof(WorkerCounters), worker);
  EXPECT_LT(sizeof(WorkerCounters), worker + 64);
  const size_t consumer = 8 * ConsumerCounters::fields().size();
  EXPECT_GE(sizeof(ConsumerCounters), consumer);
  EXPECT_LT(sizeof(ConsumerCounters), consumer + 64);
  EXPECT_EQ(sizeof(WorkerCounters) % 64, 0U);
}

// One list of fields serves copying, stats() and the report: a field missing from it is lost in
// all.
TEST(Counters, every_field_is_listed_once_under_its_own_name) {
  WorkerCounters counters;
  std::set<std::string> names;
  std::set<const void*> places;
  for (const auto& field : WorkerCounters::fields()) {
    names.insert(std::string(field.name));
    places.insert(&(counters.*field.member));
  }
  EXPECT_EQ(names.size(), WorkerCounters::fields().size());
  EXPECT_EQ(places.size(), WorkerCounters::fields().size());
}

TEST(Counters, a_reading_has_every_figure_in_its_own_place) {
  WorkerCounters counters;
  uint64_t value = 1;
  for (const auto& field : WorkerCounters::fields()) {
    (counters.*field.member).set(value++);
  }
  count_copy(counters, CopyReason::kRow, 768);
  count_copy(counters, CopyReason::kRow, 768);
  count_avoided_copy(counters, 4096);
  const WorkerFigures figures = figures_of(counters);
  EXPECT_EQ(figures.tickets, 1U);
  EXPECT_EQ(figures.samples, 2U);
  EXPECT_EQ(figures.page_faults, WorkerCounters::fields().size());
  EXPECT_EQ(figures.copies[static_cast<size_t>(CopyReason::kRow)], 2U);
  EXPECT_EQ(figures.bytes_copied[static_cast<size_t>(CopyReason::kRow)], 1536U);
  EXPECT_EQ(figures.copies[static_cast<size_t>(CopyReason::kNotOwned)], 0U);

  WorkerFigures sum = figures;
  sum += figures;
  EXPECT_EQ(sum.tickets, 2U);
  EXPECT_EQ(sum.bytes_avoided, 2 * figures.bytes_avoided);
  EXPECT_EQ(sum.copies[static_cast<size_t>(CopyReason::kRow)], 4U);

  ConsumerCounters consumer;
  consumer.errors.add(7);
  consumer.delivered.add(3);
  EXPECT_EQ(figures_of(consumer).errors, 7U);
  EXPECT_EQ(figures_of(consumer).delivered, 3U);
}

TEST(Counters, add_loses_nothing_among_several_writers) {
  Counter counter;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 10'000; ++n) {
        counter.add(2);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(counter.get(), 80'000U);
}

TEST(Counters, every_reason_has_a_name_of_its_own) {
  std::set<std::string> names;
  for (size_t i = 0; i < kCopyReasons; ++i) {
    names.insert(std::string(name_of(static_cast<CopyReason>(i))));
  }
  EXPECT_EQ(names.size(), kCopyReasons);
  EXPECT_EQ(names.count("unknown"), 0U);
}

}  // namespace
}  // namespace penstock
