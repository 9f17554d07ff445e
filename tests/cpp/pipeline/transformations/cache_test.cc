#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <stdexcept>
#include <thread>

#include "../ops.h"
#include "../stages/reading.h"
#include "../stages/stream_contract.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/cache/cache_store.h"
#include "penstock/pipeline/plan/plan.h"
#include "penstock/pipeline/sources/sources.h"
#include "penstock/pipeline/stages/losses.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
namespace {

using Numbers = std::vector<int64_t>;

// A function of numbers that counts its calls.
struct Counted {
  std::atomic<int> calls{0};
  OpRef op(bool user = true) {
    return std::make_shared<test::NumberOp>(
        [this](int64_t n, const Keys&, uint32_t) {
          ++calls;
          return n * n;
        },
        !user, user);
  }
};

Numbers pass_of(Loader& feed) {
  Numbers all;
  for (auto& batch : feed.epoch()) {
    auto column = batch.at("").as_span<const int64_t>();
    all.insert(all.end(), column.begin(), column.end());
  }
  return all;
}

// Checks the calls of a pass; workers may have begun the next pass already.
void expect_calls(int calls, int expected, uint32_t workers) {
  EXPECT_GE(calls, expected);
  EXPECT_LE(calls, expected + (workers == 0 ? 0 : 200));
}

class Workers : public ::testing::TestWithParam<uint32_t> {
 protected:
  LoaderOptions options() const { return {.workers = GetParam()}; }
};
INSTANTIATE_TEST_SUITE_P(, Workers, ::testing::Values(0, 1, 3));

TEST_P(Workers, a_second_pass_calls_nothing_and_gives_the_same) {
  for (bool user : {true, false}) {
    Counted counted;
    Loader feed = Dataset::range(0, 1000)
                      .map(counted.op(user))
                      .cache()
                      .shuffle({.seed = 3})
                      .batch(7)
                      .build(options());
    Numbers expected;
    for (int64_t n = 0; n < 1000; ++n) expected.push_back(n * n);
    Numbers first = pass_of(feed), second = pass_of(feed);
    expect_calls(counted.calls, 1000, GetParam());
    EXPECT_NE(first, second) << "shuffled anew behind the cache";
    std::sort(first.begin(), first.end());
    std::sort(second.begin(), second.end());
    EXPECT_EQ(first, expected);
    EXPECT_EQ(second, expected);
  }
}

TEST_P(Workers, what_is_below_is_made_as_in_epoch_0) {
  auto draw = test::number_op([](int64_t, const Keys& keys, uint32_t j) {
    return static_cast<int64_t>(keys.sample(j).rng().next_u64() >> 1);
  });
  Dataset drawn = Dataset::range(0, 100).shuffle({.seed = 1}).map(draw);
  Loader plain = drawn.batch(10).build({.seed = 9, .workers = 0});
  LoaderOptions seeded = options();
  seeded.seed = 9;
  Loader cached = drawn.cache(1 << 20).batch(10).build(seeded);
  Loader small = drawn.cache(CacheStore::kMinBytes).batch(10).build(seeded);
  const Numbers expected = pass_of(plain);
  for (int pass = 0; pass < 3; ++pass) {
    EXPECT_EQ(pass_of(cached), expected) << pass;
    EXPECT_EQ(pass_of(small), expected) << "also what finds no space";
  }
}

TEST_P(Workers, elements_without_space_in_the_cache_are_made_again) {
  Counted counted;
  constexpr uint64_t kBytes = 64 << 10;
  Loader feed = Dataset::range(0, 2000).map(counted.op()).cache(kBytes).batch(10).build(options());
  const Numbers first = pass_of(feed);
  expect_calls(counted.calls, 2000, GetParam());
  EXPECT_EQ(pass_of(feed), first);
  // There are words for 512 of them, whose entries take 96 bytes each.
  expect_calls(counted.calls, 2000 + 2000 - 512, GetParam());
  EXPECT_EQ(pass_of(feed), first);
  expect_calls(counted.calls, 2000 + 2 * (2000 - 512), GetParam());
}

TEST_P(Workers, failures_are_not_kept) {
  std::atomic<int> calls{0};
  auto refuse = [&](const Example& element, SampleContext&) {
    ++calls;
    if (element.at("").as_span<const int64_t>()[0] % 10 == 3) throw std::runtime_error("no");
    return element;
  };
  LoaderOptions skipping = options();
  skipping.on_error = OnError::kSkip;
  Loader feed = Dataset::range(0, 50).map(refuse).cache().batch(5).build(skipping);
  const Numbers first = pass_of(feed);
  EXPECT_EQ(first.size(), 45u);
  EXPECT_EQ(pass_of(feed), first);
  expect_calls(calls, 50 + 5, GetParam());
  EXPECT_EQ(feed.stats().losses.size(), 10u) << "lost in each pass";
}

TEST_P(Workers, of_a_stream) {
  std::atomic<int> pulled{0};
  auto numbers = [&](uint64_t) -> Pull {
    return [&pulled, n = int64_t{0}]() mutable -> std::optional<Example> {
      if (n == 300) return std::nullopt;
      ++pulled;
      Tensor value = Tensor::make(DType::kInt64, {});
      value.as_span<int64_t>()[0] = n++;
      return Example{{"", value}};
    };
  };
  for (uint64_t bytes : {uint64_t{0}, uint64_t{16 << 10}}) {
    pulled = 0;
    Loader feed = Dataset::generator(numbers).cache(bytes).batch(7).repeat(2).build(options());
    const Numbers first = pass_of(feed);
    EXPECT_EQ(first.size(), 600u);
    EXPECT_GE(pulled, bytes == 0 ? 300 : 600) << "what was not kept is gone through again";
    EXPECT_LE(pulled, bytes == 0 ? 300 : 900) << "the next pass may have been begun";
    EXPECT_EQ(pass_of(feed), first);
    for (size_t i = 0; i < 300; ++i) EXPECT_EQ(first[i], static_cast<int64_t>(i));
  }
}

TEST_P(Workers, strings_and_states) {
  Dataset cached = Dataset::range(0, 60).map(std::make_shared<test::TextOp>()).cache().batch(4);
  Loader feed = cached.build(options());
  auto pass = [](Loader& of) {
    std::vector<std::string> all;
    for (auto& batch : of.epoch()) {
      auto text = batch.at("text").as_span<const uint8_t>();
      all.emplace_back(text.begin(), text.end());
    }
    return all;
  };
  const auto expected = pass(feed);
  EXPECT_EQ(pass(feed), expected);
  for (size_t taken = 1; taken < expected.size(); ++taken) {
    (void)feed.next();
    Loader other = cached.build(options());
    other.restore(feed.state());
    EXPECT_EQ(pass(other), std::vector<std::string>(expected.begin() + taken, expected.end()));
  }
}

TEST(Cache, a_stream_keeps_the_streams_contract) {
  auto pull = [](uint64_t) -> Pull {
    return [n = int64_t{0}]() mutable -> std::optional<Example> {
      if (n == 150) return std::nullopt;
      Tensor value = Tensor::make(DType::kInt64, {n % 3});
      for (int64_t& v : value.as_span<int64_t>()) v = n;
      ++n;
      return Example{{"", value}};
    };
  };
  auto generated = nodes::generator("numbers", pull);
  testing::check_stream(nodes::cache(generated, uint64_t{0}));
  testing::check_stream(nodes::cache(generated, CacheStore::kMinBytes));
}

TEST(Cache, of_two_seeds_one_is_kept) {
  auto draw = test::number_op([](int64_t, const Keys& keys, uint32_t j) {
    return static_cast<int64_t>(keys.sample(j).rng().next_u64() >> 1);
  });
  Dataset cached = Dataset::range(0, 20).map(draw).cache();
  auto plan = std::make_shared<Plan>(*cached.node());
  auto read = [&](uint64_t seed) {
    Scratch scratch;
    Context context{scratch, seed};
    auto reader = plan->chain().reader(context);
    Chunk chunk(scratch);
    std::vector<uint64_t> positions(20);
    for (uint64_t i = 0; i < 20; ++i) positions[i] = i;
    chunk.reset(plan->chain().spec(), 20);
    reader->fetch({4, 0}, positions, chunk, 0);
    return testing::numbers(testing::elements_of(chunk, 0));
  };
  const Numbers one = read(1), two = read(2);
  EXPECT_NE(one, two);
  EXPECT_EQ(read(1), one);
  EXPECT_EQ(read(2), two);
}

TEST(Cache, whoever_takes_an_element_hears_what_was_lost_on_the_way_to_it) {
  std::barrier both(2);
  std::atomic<int> calls = 0;
  auto failing = test::number_op([&](int64_t n, const Keys&, uint32_t) {
    ++calls;
    if (n == 0) both.arrive_and_wait();  // neither finds the other's stored element
    if (n == 2) throw std::runtime_error("bad");
    return n;
  });
  // A batch as an element: its losses are noted.
  Dataset cached = Dataset::range(0, 4).map(failing).on_error(OnError::kSkip).batch(4).cache();
  auto plan = std::make_shared<Plan>(*cached.node());
  auto read = [&] {
    Scratch scratch;
    Context context{scratch, 0};
    auto reader = plan->chain().reader(context);
    Chunk chunk(scratch);
    chunk.reset(plan->chain().spec(), 1);
    const uint64_t position = 0;
    reader->fetch({0, 0}, {&position, 1}, chunk, 0);
    EXPECT_EQ(chunk.alive(), 1U);
    EXPECT_EQ(chunk.shape(0, 0)[0], 3);
    ASSERT_EQ(chunk.notes().size(), 1U);
    const Failure& lost = chunk.notes().front().second;
    EXPECT_EQ(lost.position, 2U);
    EXPECT_EQ(penstock::text_of(lost.error), "bad");
  };
  { std::jthread one(read), two(read); }
  read();
  EXPECT_EQ(calls, 8);
}

std::vector<os::Fd> copies(SharedStore& store) {
  std::vector<os::Fd> fds;
  for (int fd : store.fds()) fds.emplace_back(dup(fd));
  return fds;
}

TEST(CacheStore, many_threads_and_a_second_mapping_see_whole_entries) {
  constexpr uint64_t kPositions = 2000;
  auto store = std::make_shared<CacheStore>(8 << 20, kPositions);
  auto other = std::make_shared<CacheStore>(8 << 20, kPositions);
  other->attach(copies(*store));
  const std::vector<std::byte> spec(40, std::byte{7});
  auto block_of = [](uint64_t position) {
    return std::vector<std::byte>(64 + position % 200, static_cast<std::byte>(position % 251));
  };
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      CacheStore& mine = t % 2 == 0 ? *store : *other;
      uint64_t spec_place = 0;
      for (uint64_t i = 0; i < kPositions; ++i) {
        const uint64_t position = (i * 7 + t * 500) % kPositions;
        if (auto entry = mine.find(position)) {
          ASSERT_TRUE(std::ranges::equal(entry->block, block_of(position)));
          ASSERT_TRUE(std::ranges::equal(entry->spec, spec));
        } else {
          ASSERT_NE(mine.put(position, spec, spec_place, block_of(position)),
                    CacheStore::Put::kNoSpace);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint64_t i = 0; i < kPositions; ++i) ASSERT_TRUE(store->find(i));
  EXPECT_THROW(CacheStore(100, 10), Error);
  auto wrong = std::make_shared<CacheStore>(8 << 20, kPositions + 1);
  EXPECT_THROW(wrong->attach(copies(*store)), Error);
}

// By default a store's size depends on the memory limit of its process; a worker process may have a
// lower limit.
TEST(CacheStore, the_process_that_makes_it_decides_on_its_size) {
  for (std::optional<uint64_t> positions :
       {std::optional<uint64_t>(2000), std::optional<uint64_t>()}) {
    CacheStore store(1 << 20, positions), other(0, positions);
    other.attach(copies(store));
    const std::vector<std::byte> spec(40, std::byte{7}), block(1000, std::byte{9});
    uint64_t spec_place = 0, kept = 0;
    for (uint64_t i = 0; i < 2000; ++i) {
      kept += other.put(i, spec, spec_place, block) == CacheStore::Put::kPublished;
    }
    EXPECT_GT(kept, 900u);
    EXPECT_LT(kept, 1024u);
    for (uint64_t i = 0; i < kept; ++i)
      EXPECT_TRUE(std::ranges::equal(store.find(i)->block, block));
    EXPECT_FALSE(store.find(kept));
  }
}

}  // namespace
}  // namespace penstock
