#include "penstock/device/stage.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include "penstock/device/link_speed.h"
#include "penstock/memory/region.h"
#include "tests/cpp/device/fake.h"

namespace penstock::device {
namespace {

using testing::all_are;
using testing::ConsumerStream;
using testing::Fake;
using testing::filled;
using testing::Taken;

std::string error_of(auto&& function, Code code) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

class StageTest : public ::testing::Test {
 protected:
  StageTest() : driver(Driver::load(PENSTOCK_FAKE_DRIVER)), stream(*driver) {}

  std::shared_ptr<Stage> open() const { return Stage::open(0, PENSTOCK_FAKE_DRIVER); }

  // Reads an array on a stream as a training step does: after `us` of other work.
  void read(std::vector<uint8_t>& to, const Taken& from, Stream on, long us = 0) const {
    to.assign(from.bytes(), 0);
    fake.read(on, to.data(), from.data(), to.size(), us);
  }

  Fake fake;
  std::shared_ptr<const Driver> driver;
  ConsumerStream stream;
};

TEST_F(StageTest, a_batch_is_one_copy_however_many_arrays_it_has) {
  auto stage = open();
  const long before = fake.get("cuMemcpyHtoDAsync");
  auto batch = stage->put({filled(10, 1), filled(3, 2), Tensor::make(DType::kInt64, {0})});
  EXPECT_EQ(fake.get("cuMemcpyHtoDAsync") - before, 1);
  std::vector<uint8_t> first, second;
  {
    Taken one(batch, 0, stream.number()), two(batch, 1, stream.number());
    EXPECT_EQ(one.device().device_type, dlpack::kCuda);
    EXPECT_EQ(one.bytes(), 640u);
    read(first, one, stream.get());
    read(second, two, stream.get());
    fake.finish(stream.get());
  }
  EXPECT_TRUE(all_are(first, 1));
  EXPECT_TRUE(all_are(second, 2));
  const StageFigures figures = stage->figures();
  EXPECT_EQ(figures.batches, 1u);
  EXPECT_EQ(figures.copies, 1u);
}

// The driver's calls are most of what a small batch costs the consumer's thread.
TEST_F(StageTest, a_batch_takes_few_calls_of_the_driver_however_many_arrays_it_has) {
  auto stage = open();
  Context* own = nullptr;
  ASSERT_EQ(driver->current_context(&own), kSuccess);
  std::shared_ptr<Stage::Batch> next;
  auto calls = [&](long device_us, int host_us) {
    constexpr int kBatches = 20;
    fake.set("copy_us", device_us);
    long before = 0;
    for (int i = -4; i < kBatches; ++i) {  // the first ones make the ring
      if (i == 0) before = fake.get("calls");
      auto batch = std::exchange(next, stage->put({filled(10, 1), filled(3, 2), filled(2, 3)}));
      if (batch != nullptr) Stage::Batch::take(batch, stream.number());
      fake.delay(stream.get(), device_us);
      std::this_thread::sleep_for(std::chrono::microseconds(host_us));
    }
    return static_cast<double>(fake.get("calls") - before) / kBatches;
  };
  double least = 100;  // the threads of the driver may be late on a busy machine
  for (int tries = 0; tries < 20 && least > 17; ++tries) least = std::min(least, calls(0, 1000));
  EXPECT_LE(least, 17) << "the device waits for the host";
  EXPECT_LE(calls(500, 0), 26) << "the host waits for the device, and asks whether it must";
}

TEST_F(StageTest, strided_arrays_arrive_in_order) {
  auto stage = open();
  Tensor all = Tensor::make(DType::kInt32, {4, 6});
  auto values = all.as_span<int32_t>();
  std::iota(values.begin(), values.end(), 0);
  Tensor column = Tensor::view(DType::kInt32, {4}, all.data(), all.owner(), {24});
  auto batch = stage->put({column});
  Taken taken(batch, 0, stream.number());
  std::vector<uint8_t> bytes;
  read(bytes, taken, stream.get());
  fake.finish(stream.get());
  const int32_t expected[] = {0, 6, 12, 18};
  EXPECT_EQ(std::memcmp(bytes.data(), expected, sizeof expected), 0);
}

// ---- the order of copies and uses --------------------------------------------------------------

TEST_F(StageTest, a_consumers_stream_waits_for_the_copy) {
  auto stage = open();
  fake.set("copy_us", 50'000);
  auto batch = stage->put({filled(100, 7)});
  Taken taken(batch, 0, stream.number());
  std::vector<uint8_t> bytes;
  read(bytes, taken, stream.get());
  EXPECT_EQ(stage->figures().host_waits, 0u);
  EXPECT_EQ(stage->figures().late, 1u);
  fake.finish(stream.get());
  EXPECT_TRUE(all_are(bytes, 7));
}

TEST_F(StageTest, a_copy_waits_for_the_step_that_uses_its_slot) {
  auto stage = open();
  std::vector<uint8_t> bytes;
  const void* place = nullptr;
  {
    auto batch = stage->put({filled(100, 1)});
    stage->reap(true);
    Taken taken(batch, 0, stream.number());
    place = taken.data();
    read(bytes, taken, stream.get(), 50'000);
  }
  const uint64_t waits = stage->figures().host_waits;
  auto next = stage->put({filled(100, 2)});
  EXPECT_EQ((*next)[0].data(), place) << "the ring grew, so nothing was tested";
  EXPECT_EQ(stage->figures().host_waits, waits);
  EXPECT_EQ(stage->figures().device_waits, 1u);
  fake.finish(stream.get());
  EXPECT_TRUE(all_are(bytes, 1));
}

TEST_F(StageTest, a_copy_waits_for_all_streams_that_took_the_batch) {
  auto stage = open();
  ConsumerStream other(*driver);
  std::vector<uint8_t> first, second;
  {
    auto batch = stage->put({filled(100, 1), filled(100, 2)});
    stage->reap(true);
    Taken one(batch, 0, stream.number()), two(batch, 1, other.number());
    read(first, one, stream.get());
    read(second, two, other.get(), 50'000);
  }
  auto next = stage->put({filled(100, 3), filled(100, 4)});
  fake.finish(stream.get());
  fake.finish(other.get());
  EXPECT_TRUE(all_are(first, 1));
  EXPECT_TRUE(all_are(second, 2));
}

TEST_F(StageTest, a_consumer_that_orders_itself_is_waited_for_as_a_whole) {
  auto stage = open();
  std::vector<uint8_t> bytes;
  {
    auto batch = stage->put({filled(100, 1)});
    stage->reap(true);
    Taken taken(batch, 0, -1);
    read(bytes, taken, stream.get(), 50'000);
  }
  auto next = stage->put({filled(100, 2)});
  EXPECT_EQ(stage->figures().synchronised, 1u);
  fake.finish(stream.get());
  EXPECT_TRUE(all_are(bytes, 1));
}

TEST_F(StageTest, no_ordering_is_added_for_stream_minus_one) {
  auto stage = open();
  fake.set("copy_us", 20'000);
  const long before = fake.get("cuStreamWaitEvent");
  auto batch = stage->put({filled(100, 1)});
  Taken taken(batch, 0, -1);
  EXPECT_EQ(fake.get("cuStreamWaitEvent"), before);
}

TEST_F(StageTest, a_default_stream_of_a_thread_is_not_that_of_the_thread_that_drops_the_batch) {
  auto stage = open();
  std::vector<uint8_t> bytes;
  {
    auto batch = stage->put({filled(100, 1)});
    stage->reap(true);
    std::unique_ptr<Taken> taken;
    std::thread([&] {
      taken = std::make_unique<Taken>(batch, 0, 2);
      read(bytes, *taken, per_thread_default_stream(), 50'000);
    }).join();
  }
  auto next = stage->put({filled(100, 2)});
  EXPECT_EQ(stage->figures().synchronised, 1u);
  Taken now(next, 0, stream.number());
  std::vector<uint8_t> after;
  read(after, now, stream.get());
  fake.finish(stream.get());
  EXPECT_TRUE(all_are(bytes, 1));
  EXPECT_TRUE(all_are(after, 2));
}

TEST_F(StageTest, a_default_stream_needs_no_wait_of_the_device_in_its_own_thread) {
  auto stage = open();
  for (int64_t number : {1, 2}) {
    std::vector<uint8_t> bytes;
    {
      auto batch = stage->put({filled(100, 1)});
      stage->reap(true);
      Taken taken(batch, 0, number);
      read(bytes, taken, reinterpret_cast<Stream>(number), 20'000);
    }
    auto next = stage->put({filled(100, 2)});
    fake.finish(reinterpret_cast<Stream>(number));
    EXPECT_TRUE(all_are(bytes, 1));
  }
  EXPECT_EQ(stage->figures().synchronised, 0u);
}

TEST_F(StageTest, other_numbers_of_streams_are_refused) {
  auto stage = open();
  auto batch = stage->put({filled(1, 1)});
  for (int64_t number : {0, -2}) {
    error_of([&] { Taken(batch, 0, number); }, Code::kInvalidArgument);
  }
}

TEST_F(StageTest, host_memory_is_kept_until_its_copy_has_passed) {
  auto stage = open();
  fake.set("copy_us", 30'000);
  std::vector<uint8_t> bytes;
  // The second batch reuses the slot, and its pinned memory, while the first is on the link.
  {
    auto batch = stage->put({filled(100, 1)});
    Taken taken(batch, 0, stream.number());
    read(bytes, taken, stream.get());
  }
  auto next = stage->put({filled(100, 2)});
  fake.finish(stream.get());
  EXPECT_TRUE(all_are(bytes, 1));
  EXPECT_EQ(stage->figures().host_waits, 1u);
  EXPECT_GT(stage->figures().host_wait_ns, 0u);
}

TEST_F(StageTest, a_stream_that_captures_gets_no_batch) {
  auto stage = open();
  auto batch = stage->put({filled(1, 1)});
  fake.capture(stream.get(), 1);
  const std::string text =
      error_of([&] { Taken(batch, 0, stream.number()); }, Code::kInvalidArgument);
  EXPECT_NE(text.find("before the capture"), std::string::npos) << text;
  fake.capture(stream.get(), 0);
}

TEST_F(StageTest, a_batch_dropped_during_a_capture_adds_nothing_to_the_graph) {
  auto stage = open();
  std::vector<uint8_t> bytes;
  {
    auto batch = stage->put({filled(100, 1)});
    stage->reap(true);
    Taken taken(batch, 0, stream.number());
    read(bytes, taken, stream.get(), 30'000);
    fake.capture(stream.get(), 1);
  }
  fake.capture(stream.get(), 0);
  EXPECT_EQ(fake.get("captured events"), 0);
  auto next = stage->put({filled(100, 2)});
  fake.finish(stream.get());
  EXPECT_TRUE(all_are(bytes, 1));
  EXPECT_EQ(stage->figures().synchronised, 1u);
}

TEST_F(StageTest, batches_go_on_while_another_stream_captures) {
  auto stage = open();
  ConsumerStream other(*driver);
  auto held = stage->put({filled(100, 1)});
  fake.capture(other.get(), 1);
  for (int i = 0; i < 20; ++i) {
    fake.set("copy_us", i % 2 == 0 ? 1000 : 0);
    auto batch = stage->put({filled(100 * (i + 1), 2)});
    Taken taken(batch, 0, stream.number());
    std::vector<uint8_t> bytes;
    read(bytes, taken, stream.get());
    fake.finish(stream.get());
    EXPECT_TRUE(all_are(bytes, 2));
  }
  stage->reap(true);
  stage->traces();
  { auto second = open(); }
  stage->close();
  held.reset();
  EXPECT_EQ(fake.get("captures ended"), 0);
  // The thread itself has its own mode again.
  Event event = nullptr;
  driver->create_event(&event, 0);
  EXPECT_NE(driver->query_event(event), kSuccess);
  fake.capture(other.get(), 0);
  driver->destroy_event(event);
}

TEST_F(StageTest, a_default_stream_that_a_capture_excludes_gets_no_batch_until_its_end) {
  auto stage = open();
  auto batch = stage->put({filled(1, 1)});
  fake.set("fail cuStreamIsCapturing", kCaptureImplicit);
  error_of([&] { Taken(batch, 0, 1); }, Code::kInvalidArgument);
  fake.set("fail cuStreamIsCapturing", 0);
  Taken taken(batch, 0, 1);
  EXPECT_NE(stage->put({filled(1, 2)}), nullptr);
}

// ---- the size of the ring ----------------------------------------------------------------------

TEST_F(StageTest, batches_that_grow_replace_few_slots_and_keep_none_of_the_small_ones) {
  auto stage = open();
  const long before = fake.get("cuMemAlloc");
  std::shared_ptr<Stage::Batch> held;
  size_t bytes = 0;
  for (int i = 1; i <= 200; ++i) {
    Tensor tensor = Tensor::make(DType::kUint8, {i * 40'000});
    bytes = tensor.nbytes();
    auto batch = stage->put({tensor});
    Taken taken(batch, 0, stream.number());
    held = std::move(batch);
  }
  EXPECT_LE(stage->figures().slots, 4u);
  EXPECT_LE(stage->figures().slot_bytes, 6 * bytes);
  EXPECT_LE(stage->figures().pinned_bytes, 6 * bytes);
  EXPECT_LE(fake.get("cuMemAlloc") - before, 60);
}

TEST_F(StageTest, slots_of_batches_that_were_kept_are_freed_when_none_needs_them) {
  auto stage = open();
  {
    std::vector<std::shared_ptr<Stage::Batch>> kept;
    for (int i = 0; i < 50; ++i) kept.push_back(stage->put({filled(10, 1)}));
  }
  EXPECT_GE(stage->figures().slots, 50u);
  auto held = stage->put({filled(10, 1)});
  for (int i = 0; i < 600; ++i) held = stage->put({filled(10, 1)});
  EXPECT_LE(stage->figures().slots, 4u);
  // A consumer that keeps as many again and again keeps the slots.
  const long freed = fake.get("cuMemFree");
  for (int round = 0; round < 40; ++round) {
    std::vector<std::shared_ptr<Stage::Batch>> kept;
    for (int i = 0; i < 50; ++i) kept.push_back(stage->put({filled(10, 1)}));
  }
  EXPECT_EQ(fake.get("cuMemFree"), freed);
}

// Batches of many sizes, dropped by another thread in any order, on two streams with delays: every
// array is read as it was put.
TEST_F(StageTest, many_batches_on_two_streams_are_read_as_they_were_put) {
  auto stage = open();
  ConsumerStream other(*driver);
  constexpr int kBatches = 300;
  std::vector<std::vector<uint8_t>> read_back(kBatches);
  for (int i = 0; i < kBatches; ++i) {
    fake.set("copy_us", i % 7 == 0 ? 300 : 0);
    auto batch = stage->put({filled(1 + i % 50, static_cast<uint8_t>(i)), filled(2, 0)});
    const bool first = i % 3 != 0;
    auto taken = std::make_unique<Taken>(batch, 0, first ? stream.number() : other.number());
    read(read_back[static_cast<size_t>(i)], *taken, first ? stream.get() : other.get(),
         i % 5 == 0 ? 200 : 0);
    if (i % 2) {
      std::thread([held = std::move(taken), also = std::move(batch)]() mutable {
        also.reset();
        held.reset();
      }).join();
    }
  }
  fake.finish(stream.get());
  fake.finish(other.get());
  for (int i = 0; i < kBatches; ++i) {
    EXPECT_TRUE(all_are(read_back[static_cast<size_t>(i)], static_cast<uint8_t>(i))) << i;
  }
  EXPECT_LE(stage->figures().slots, 4u);
}

TEST_F(StageTest, batches_may_be_dropped_by_another_thread_at_any_time) {
  auto stage = open();
  std::atomic<bool> over{false};
  std::mutex mutex;
  std::vector<std::shared_ptr<Stage::Batch>> dropped;
  std::thread dropper([&] {
    while (!over) {
      std::vector<std::shared_ptr<Stage::Batch>> mine;
      std::lock_guard lock(mutex);
      mine.swap(dropped);
    }
  });
  for (int i = 0; i < 300; ++i) {
    auto batch = stage->put({filled(4, 1)});
    { Taken taken(batch, 0, stream.number()); }
    std::lock_guard lock(mutex);
    dropped.push_back(std::move(batch));
  }
  over = true;
  dropper.join();
}

// ---- memory that workers wrote
// -------------------------------------------------------------------

class PinnedStageTest : public StageTest {
 protected:
  PinnedStageTest() : region(Region::create(Region::Kind::kShared, 64 << 20)) {
    region->extend(16 << 20);
  }
  // An array in the region, which counts when its owner ends.
  Tensor array(size_t offset, int64_t bytes, uint8_t with) {
    std::byte* data = region->base() + Region::kFirstBlock + offset;
    std::memset(data, with, static_cast<size_t>(bytes));
    std::shared_ptr<void> owner(data, [this](void*) { ++ended; });
    return Tensor::view(DType::kUint8, {bytes}, data, std::move(owner));
  }

  std::shared_ptr<Region> region;
  std::atomic<int> ended{0};
};

TEST_F(PinnedStageTest, arrays_of_one_block_are_one_copy_from_where_they_lie) {
  auto stage = open();
  const long before = fake.get("cuMemcpyHtoDAsync");
  const long pinned = fake.get("cuMemHostRegister");
  for (int i = 0; i < 3; ++i) {
    auto batch = stage->put({array(512, 300'000, 1), array(0, 500, 2)});
    Taken one(batch, 0, stream.number()), two(batch, 1, stream.number());
    std::vector<uint8_t> first, second;
    read(first, one, stream.get());
    read(second, two, stream.get());
    fake.finish(stream.get());
    EXPECT_TRUE(all_are(first, 1));
    EXPECT_TRUE(all_are(second, 2));
  }
  EXPECT_EQ(fake.get("cuMemcpyHtoDAsync") - before, 3);
  EXPECT_EQ(fake.get("cuMemHostRegister") - pinned, 1) << "pinned once, not for each batch";
  const StageFigures figures = stage->figures();
  EXPECT_EQ(figures.gathered_bytes, 0u);
  EXPECT_EQ(figures.pinned_bytes, 0u);
}

TEST_F(PinnedStageTest, large_arrays_far_apart_are_a_copy_each_and_small_ones_are_gathered) {
  auto stage = open();
  auto batch = stage->put(
      {array(0, 200'000, 1), filled(1, 2), array(8 << 20, 300'000, 3), array(4 << 20, 100, 4)});
  std::vector<std::vector<uint8_t>> found(4);
  {
    std::vector<Taken> taken;
    for (size_t i = 0; i < 4; ++i) {
      taken.emplace_back(batch, i, stream.number());
      read(found[i], taken[i], stream.get());
    }
    fake.finish(stream.get());
  }
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(all_are(found[i], static_cast<uint8_t>(i + 1))) << i;
  EXPECT_EQ(stage->figures().copies, 3u);
  EXPECT_LT(stage->figures().gathered_bytes, 1000u);
}

TEST_F(PinnedStageTest, workers_memory_is_kept_until_it_was_read_and_no_longer) {
  auto stage = open();
  fake.set("copy_us", 50'000);
  std::vector<uint8_t> bytes;
  auto batch = stage->put({array(0, 100'000, 1)});
  Taken taken(batch, 0, stream.number());
  read(bytes, taken, stream.get());
  stage->reap();
  EXPECT_EQ(ended, 0) << "the worker would overwrite what the copy engine reads";
  fake.finish(stream.get());
  EXPECT_EQ(ended, 0);
  stage->reap();
  EXPECT_EQ(ended, 1);
  EXPECT_TRUE(all_are(bytes, 1));
}

TEST_F(PinnedStageTest, closing_in_the_middle_of_a_copy_returns_the_memory_after_it) {
  auto stage = open();
  fake.set("copy_us", 30'000);
  std::vector<uint8_t> bytes;
  auto batch = stage->put({array(0, 100'000, 1)});
  Taken taken(batch, 0, stream.number());
  stage->close();
  EXPECT_EQ(ended, 1);
  std::memset(region->base() + Region::kFirstBlock, 9, 100'000);
  read(bytes, taken, stream.get());
  fake.finish(stream.get());
  EXPECT_TRUE(all_are(bytes, 1));
}

TEST_F(PinnedStageTest, a_batch_dropped_while_the_stage_closes_is_freed_after_its_copy) {
  const long lost = fake.get("copies to freed memory");
  const long waits = fake.get("cuStreamSynchronize");
  auto stage = open();
  fake.set("copy_us", 50'000);
  auto batch = stage->put({array(0, 100'000, 1)});
  std::thread closing([&] { stage->close(); });
  while (fake.get("cuStreamSynchronize") == waits) std::this_thread::yield();
  EXPECT_EQ(ended, 0);
  batch.reset();
  EXPECT_EQ(ended, 1);
  closing.join();
  EXPECT_EQ(fake.get("copies to freed memory"), lost);
}

TEST_F(PinnedStageTest, a_region_that_grows_is_pinned_in_pieces_which_no_copy_crosses) {
  auto stage = open();
  const long before = fake.get("cuMemHostRegister");
  const long pageable = fake.get("pageable copies");
  stage->put({array(0, 100'000, 1)});
  region->extend(32 << 20);
  const size_t border = (16 << 20) - Region::kFirstBlock;
  auto batch = stage->put({array(border - 100'000, 200'000, 2)});
  EXPECT_EQ(fake.get("cuMemHostRegister") - before, 2);
  EXPECT_EQ(stage->figures().copies, 3u);
  EXPECT_EQ(fake.get("pageable copies"), pageable);
  Taken taken(batch, 0, stream.number());
  std::vector<uint8_t> bytes;
  read(bytes, taken, stream.get());
  fake.finish(stream.get());
  EXPECT_TRUE(all_are(bytes, 2));
}

TEST_F(PinnedStageTest, the_first_batch_does_not_wait_for_the_pages_of_a_whole_queue) {
  region = Region::create(Region::Kind::kShared, 512 << 20);
  region->extend(512 << 20);
  auto stage = open();
  const long before = fake.get("pinned in use"), calls = fake.get("cuMemHostRegister");
  auto pinned = [&] { return (fake.get("pinned in use") - before) >> 20; };
  constexpr int64_t kBytes = 38 << 20;
  stage->put({array(0, kBytes, 1), array(kBytes, 2048, 2)});
  EXPECT_EQ(pinned(), 38);
  for (size_t i = 1; i < 12; ++i) stage->put({array(i * (kBytes + 4096), kBytes, 1)});
  EXPECT_EQ(pinned(), 512);
  EXPECT_EQ(fake.get("cuMemHostRegister") - calls, 5) << "38, 76, 152, 304 MiB, and the rest";
}

TEST_F(PinnedStageTest, a_refused_registration_leaves_the_way_through_pinned_buffers) {
  fake.set("fail cuMemHostRegister", kNoMemory);
  auto stage = open();
  const long before = fake.get("cuMemHostRegister");
  std::vector<uint8_t> bytes;
  for (int i = 0; i < 3; ++i) {
    auto batch = stage->put({array(0, 100'000, 1)});
    Taken taken(batch, 0, stream.number());
    read(bytes, taken, stream.get());
    fake.finish(stream.get());
  }
  EXPECT_EQ(fake.get("cuMemHostRegister") - before, 1) << "asked again for each batch";
  EXPECT_GE(stage->figures().gathered_bytes, 300'000u);
  EXPECT_TRUE(all_are(bytes, 1));
}

TEST_F(PinnedStageTest, pages_stay_where_they_were_pinned) {
  auto stage = open();
  auto batch = stage->put({array(0, 100'000, 1)});
  stage->reap(true);
  region->extend(17 << 20);
  std::memset(region->base() + (16 << 20), 5, 4096);
  region->discard(0 + Region::kFirstBlock, (17 << 20) - Region::kFirstBlock);
  EXPECT_EQ(region->base()[Region::kFirstBlock], std::byte{1})
      << "the device would read a page that no process has any more";
  EXPECT_EQ(region->base()[16 << 20], std::byte{0}) << "pages that are not pinned are discarded";
}

TEST_F(PinnedStageTest, pages_are_unpinned_before_they_are_unmapped) {
  const long pinned = fake.get("pinned in use");
  const long contexts = fake.get("contexts");
  auto stage = open();
  stage->put({array(0, 100'000, 1)});
  EXPECT_EQ(fake.get("pinned in use") - pinned, 16 << 20);
  stage->close();
  stage.reset();
  region.reset();
  EXPECT_EQ(fake.get("pinned in use"), pinned);
  EXPECT_EQ(fake.get("contexts"), contexts);
}

TEST_F(PinnedStageTest, private_memory_is_not_pinned) {
  region = Region::create(Region::Kind::kPrivate, 64 << 20);
  region->extend(16 << 20);
  auto stage = open();
  const long before = fake.get("cuMemHostRegister");
  stage->put({array(0, 100'000, 1)});
  EXPECT_EQ(fake.get("cuMemHostRegister"), before);
}

// ---- faults -------------------------------------------------------------------------------------

TEST_F(StageTest, a_full_device_says_how_much_is_missing) {
  fake.set("device_memory", 2 << 20);
  auto stage = open();
  Tensor large = Tensor::make(DType::kUint8, {1 << 20});
  std::vector<std::shared_ptr<Stage::Batch>> held;
  held.push_back(stage->put({large}));
  held.push_back(stage->put({large}));
  { Taken taken(held[0], 0, stream.number()); }
  const std::string text = error_of([&] { stage->put({large}); }, Code::kOutOfMemory);
  EXPECT_NE(text.find("1 MiB are missing"), std::string::npos) << text;
  EXPECT_NE(text.find("earlier batches are still held"), std::string::npos) << text;
  held.pop_back();
  EXPECT_NE(stage->put({large}), nullptr);  // a smaller ring goes on
}

TEST_F(StageTest, slots_that_are_too_small_make_room_for_a_larger_batch) {
  fake.set("device_memory", 2 << 20);
  auto stage = open();
  Tensor small = Tensor::make(DType::kUint8, {1 << 20});
  {
    auto one = stage->put({small}), two = stage->put({small});
    Taken taken(one, 0, stream.number());
    fake.delay(stream.get(), 20'000);
  }
  auto large = stage->put({Tensor::make(DType::kUint8, {2 << 20})});
  EXPECT_EQ(stage->figures().slots, 1u);
  EXPECT_EQ(fake.get("memory in use"), 2 << 20);
}

TEST_F(StageTest, without_pinned_memory_batches_are_copied_from_pageable_memory) {
  fake.set("pinned_memory", 0);
  auto stage = open();
  auto batch = stage->put({filled(100, 9)});
  Taken taken(batch, 0, stream.number());
  std::vector<uint8_t> bytes;
  read(bytes, taken, stream.get());
  fake.finish(stream.get());
  EXPECT_TRUE(all_are(bytes, 9));
  EXPECT_EQ(stage->figures().pageable, 1u);
  EXPECT_EQ(stage->figures().pinned_bytes, 0u);
}

TEST_F(StageTest, a_driver_that_vanishes_is_an_error_and_stays_one) {
  auto stage = open();
  auto batch = stage->put({filled(100, 1)});
  fake.set("fail", kDeinitialized);
  std::string text = error_of([&] { stage->put({filled(100, 2)}); }, Code::kSystem);
  EXPECT_NE(text.find("CUDA_ERROR_DEINITIALIZED"), std::string::npos) << text;
  batch.reset();
  fake.set("fail", 0);
  text = error_of([&] { stage->put({filled(100, 2)}); }, Code::kSystem);
  EXPECT_NE(text.find("checkpoint"), std::string::npos) << text;
  stage->close();
}

TEST_F(StageTest, a_lost_device_is_named_at_the_copy_that_fails) {
  auto stage = open();
  fake.set("fail cuMemcpyHtoDAsync", kLaunchFailed);
  const std::string text = error_of([&] { stage->put({filled(100, 2)}); }, Code::kSystem);
  EXPECT_NE(text.find("cuda:0: a copy to the device failed: CUDA_ERROR_LAUNCH_FAILED"),
            std::string::npos)
      << text;
}

TEST_F(StageTest, closing_waits_for_copies_and_keeps_batches_that_are_held) {
  const long used = fake.get("memory in use");
  const long contexts = fake.get("contexts");
  auto stage = open();
  fake.set("copy_us", 30'000);
  auto held = stage->put({filled(100, 5)});
  stage->put({filled(100, 6)});
  stage->close();
  stage->close();
  EXPECT_EQ(stage->figures().slots, 1u);
  error_of([&] { stage->put({filled(1, 1)}); }, Code::kClosed);
  std::vector<uint8_t> bytes;
  {
    Taken taken(held, 0, stream.number());
    held.reset();
    stage.reset();
    read(bytes, taken, stream.get(), 20'000);
  }
  EXPECT_TRUE(all_are(bytes, 5)) << "memory was freed before the step had read it";
  EXPECT_EQ(fake.get("memory in use"), used);
  EXPECT_EQ(fake.get("contexts"), contexts);
}

TEST_F(StageTest, a_forked_child_is_refused_and_its_copies_end_quietly) {
  auto stage = open();
  auto batch = stage->put({filled(100, 5)});
  const pid_t child = fork();
  if (child == 0) {
    int right = 0;
    try {
      stage->put({filled(1, 1)});
    } catch (const Error& error) {
      right += error.code() == Code::kInvalidArgument &&
               std::string(error.what()).find("spawn") != std::string::npos;
    }
    try {
      Driver::load(PENSTOCK_FAKE_DRIVER);
    } catch (const Error& error) {
      right += error.code() == Code::kInvalidArgument;
    }
    batch.reset();
    stage.reset();
    _exit(right == 2 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_NE(stage->put({filled(1, 1)}), nullptr);
}

TEST_F(StageTest, devices_and_drivers_that_are_not_there_are_not_found) {
  std::string text = error_of([] { Stage::open(7, PENSTOCK_FAKE_DRIVER); }, Code::kNotFound);
  EXPECT_NE(text.find("there are 2 devices"), std::string::npos) << text;
  text = error_of([] { Stage::open(0, "libno-such-driver.so.1"); }, Code::kNotFound);
  EXPECT_NE(text.find("device=\"cpu\""), std::string::npos) << text;
  error_of([] { Stage::open(0, "libc.so.6"); }, Code::kNotFound);
  const auto devices = driver->devices();
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(devices[1].name, "Fake 1");
}

TEST_F(StageTest, the_speed_of_the_link_is_that_of_its_copies) {
  constexpr size_t kBytes = 1 << 20;
  fake.set("copy_us", 5000);
  const LinkSpeed speed = link_speed(0, kBytes, PENSTOCK_FAKE_DRIVER);
  EXPECT_GT(speed.pinned, 0);
  EXPECT_LE(speed.pinned, kBytes / 5e-3);
  EXPECT_LE(speed.pageable, kBytes / 5e-3);
  fake.set("copy_us", 0);
  fake.set("fail cuMemHostAlloc", 2);
  EXPECT_EQ(link_speed(0, kBytes, PENSTOCK_FAKE_DRIVER).pinned, 0);
  fake.set("fail cuMemHostAlloc", 0);
  fake.set("device_memory", kBytes);
  for (int again = 0; again < 2; ++again) link_speed(0, kBytes, PENSTOCK_FAKE_DRIVER);
  fake.set("device_memory", kBytes / 2);
  EXPECT_NE(error_of([&] { link_speed(0, kBytes, PENSTOCK_FAKE_DRIVER); }, Code::kOutOfMemory), "");
  error_of([&] { link_speed(7, kBytes, PENSTOCK_FAKE_DRIVER); }, Code::kNotFound);
}

}  // namespace
}  // namespace penstock::device
