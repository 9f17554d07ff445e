// Streams with take, shuffle(buffer), and unbatch.
#include <gtest/gtest.h>

#include <algorithm>

#include "penstock/pipeline/sources/sources.h"
#include "penstock/pipeline/transformations/transformations.h"
#include "streams.h"

namespace penstock::testing {
namespace {

namespace ref = reference;

TEST(TakeWhile, ends_in_front_of_the_first_that_does_not_hold) {
  for (int64_t end : {0, 1, 63, 64, 65, 199, 500}) {
    auto below = [end](int64_t n) { return n < end; };
    check_stream(nodes::take_while(range(200), predicate(below)),
                 ref::take_while(ref::range(0, 200), below));
  }
  auto some = [](int64_t n) { return n % 31 != 0 || n == 0; };
  check_stream(nodes::take_while(odds(300), predicate(some)), ref::take_while(ref_odds(300), some));
  check_stream(nodes::repeat(nodes::take_while(odds(300), predicate(some)), 5),
               ref::repeat(ref::take_while(ref_odds(300), some), 5));
  check_stream(nodes::take_while(faulty(150), predicate([](int64_t n) { return n < 90; })));
}

TEST(ShuffleBuffer, is_as_documented) {
  for (uint64_t buffer : {1, 2, 10, 64, 149, 150, 151, 1000}) {
    check_stream(nodes::shuffle_buffer(range(150), 7, buffer),
                 ref::shuffle_buffer(ref::range(0, 150), 7, buffer));
  }
  check_stream(nodes::shuffle_buffer(odds(300), 7, 20), ref::shuffle_buffer(ref_odds(300), 7, 20));
  check_stream(nodes::shuffle_buffer(odds(300), 7, 20, false),
               ref::shuffle_buffer(ref_odds(300), 7, 20, false));
  check_stream(nodes::repeat(nodes::shuffle_buffer(odds(100), 7, 20), 3),
               ref::repeat(ref::shuffle_buffer(ref_odds(100), 7, 20), 3));
  check_stream(nodes::shuffle_buffer(nodes::shuffle_buffer(odds(200), 7, 20), 8, 5));
  check_stream(nodes::shuffle_buffer(nodes::repeat(odds(60), kEndless), 7, 20), 200);
  check_stream(nodes::shuffle_buffer(range(0), 7, 20), ref::range(0, 0));
}

TEST(ShuffleBuffer, what_failed_passes_and_nothing_is_lost) {
  check_stream(nodes::shuffle_buffer(faulty(150), 7, 20));
  StreamReading reading(nodes::shuffle_buffer(faulty(150), 7, 20));
  std::vector<int64_t> all = numbers(reading.epoch());
  EXPECT_EQ(std::count(all.begin(), all.end(), -1), 15);
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all.size(), 150u);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  EXPECT_EQ(all.size(), 136u);
}

TEST(ShuffleBuffer, every_element_is_equally_likely_everywhere_when_all_fit) {
  StreamReading reading(nodes::shuffle_buffer(range(8), 7, 8));
  std::vector<std::vector<int>> counts(8, std::vector<int>(8));
  for (uint64_t epoch = 0; epoch < 4000; ++epoch) {
    std::vector<int64_t> order = numbers(reading.epoch(epoch));
    for (size_t place = 0; place < 8; ++place) ++counts[place][static_cast<size_t>(order[place])];
  }
  for (const auto& place : counts) {
    double chi = 0;
    for (int count : place) chi += (count - 500.0) * (count - 500.0) / 500.0;
    EXPECT_LT(chi, 30);  // 7 degrees of freedom: probability 1 in 10,000
  }
}

TEST(ShuffleBuffer, elements_of_differing_length_keep_theirs) {
  std::vector<Example> elements;
  for (int64_t i = 0; i < 120; ++i) {
    elements.push_back({{"text", text(std::string(static_cast<size_t>(i % 7), 'x'))},
                        {"number", tensor<int64_t>({}, {i})}});
  }
  auto all = nodes::items(elements);
  check_stream(nodes::shuffle_buffer(all, 1, 30));
  StreamReading reading(nodes::shuffle_buffer(all, 1, 30));
  for (const Made& made : reading.epoch()) {
    EXPECT_EQ(made->at("text").shape()[0], made->at("number").as_span<const int64_t>()[0] % 7);
  }
}

TEST(ShuffleBuffer, says_what_cannot_be) {
  EXPECT_THROW(nodes::shuffle_buffer(range(9), 1, 0), Error);
  StreamReading reading(nodes::shuffle_buffer(range(90), 7, 20));
  reading.reader().begin(0);
  (void)reading.next(40);
  State state = reading.reader().save();
  for (const char* name : {"draws", "read"}) {
    State wrong = state;
    wrong[name] = 1000;
    EXPECT_THROW(reading.reader().load(0, wrong), Error) << name;
  }
}

TEST(Unbatch, rows_become_elements) {
  for (uint64_t n : {1, 3, 64, 100}) {
    check_stream(nodes::unbatch(nodes::batch(range(150), n, false)), ref::range(0, 150));
    check_stream(nodes::unbatch(nodes::batch(odds(200), n, false)), ref_odds(200));
  }
  std::vector<Example> elements;
  int64_t number = 0;
  for (int64_t rows : {3, 0, 1, 100, 0, 0, 7, 64, 64, 2}) {
    Tensor numbers = Tensor::make(DType::kInt64, {rows, 2});
    for (int64_t& value : numbers.as_span<int64_t>()) value = number++;
    elements.push_back({{"pairs", numbers}});
  }
  auto lists = nodes::items(elements);
  check_stream(nodes::unbatch(lists));
  StreamReading reading(nodes::unbatch(lists));
  std::vector<int64_t> all = numbers(reading.epoch(), "pairs");
  ASSERT_EQ(all.size(), static_cast<size_t>(number));
  for (int64_t i = 0; i < number; ++i) EXPECT_EQ(all[static_cast<size_t>(i)], i);
  EXPECT_EQ(reading.stage().spec()->to_string(), "{pairs: int64 (2,)}");
}

TEST(Unbatch, what_has_no_rows_or_not_the_same_is_an_error) {
  EXPECT_THROW(StreamReading(nodes::unbatch(range(9))), Error);
  std::vector<Example> elements;
  for (int64_t rows : {2, 3, 2}) {
    elements.push_back(
        {{"a", tensor<int64_t>({2}, {1, 2})},
         {"b", tensor(Shape{rows}, std::vector<int64_t>(static_cast<size_t>(rows)))}});
  }
  StreamReading reading(nodes::unbatch(nodes::items(elements)));
  std::vector<Made> made = reading.epoch();
  EXPECT_EQ(numbers(made, "a"), (std::vector<int64_t>{1, 2, -1, 1, 2}));
  ASSERT_EQ(reading.failures().size(), 1u);
  EXPECT_EQ(text_of(reading.failures()[0].second), "unbatch: 'a' has 2 rows, and 'b' has 3");
  EXPECT_EQ(reading.failures()[0].second.position, 1u);
  check_stream(nodes::unbatch(nodes::items(elements)));
}

TEST(Rebatch, batches_of_another_size) {
  for (uint64_t from : {1, 4, 70}) {
    for (uint64_t to : {1, 3, 64}) {
      for (bool drop : {false, true}) {
        auto rebatched = nodes::rebatch(nodes::batch(odds(150), from, false), to, drop);
        check_stream(rebatched);
        ref::Lists expected = ref::batch(ref_odds(150), to, drop, 0);
        StreamReading reading(rebatched);
        std::vector<Made> made = reading.epoch();
        ASSERT_EQ(made.size(), expected.size());
        for (size_t i = 0; i < made.size(); ++i) {
          EXPECT_EQ(numbers({made[i]}), expected[i]) << from << " to " << to;
        }
      }
    }
  }
  EXPECT_THROW(nodes::rebatch(range(9), 0, false), Error);
}

}  // namespace
}  // namespace penstock::testing
