// Streams made from several inputs: sample_from, choose_from, flat_map and interleave; and unique.
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "penstock/pipeline/sources/sources.h"
#include "penstock/pipeline/transformations/transformations.h"
#include "streams.h"

namespace penstock::testing {
namespace {

namespace ref = reference;

Node::Ref remainders(Node::Ref input, int64_t of) {
  return nodes::map(std::move(input),
                    test::number_op([of](int64_t n, const Keys&, uint32_t) { return n % of; }));
}
ref::Dataset ref_remainders(ref::Dataset input, int64_t of) {
  return [=](uint64_t epoch) {
    ref::Elements all = input(epoch);
    for (int64_t& element : all) element %= of;
    return all;
  };
}

TEST(Unique, each_comes_once) {
  for (int64_t of : {1, 2, 30, 100}) {
    check_stream(nodes::unique(remainders(odds(300), of)),
                 ref::unique(ref_remainders(ref_odds(300), of)));
  }
  check_stream(nodes::unique(nodes::repeat(odds(100), 3)),
               ref::unique(ref::repeat(ref_odds(100), 3)));
  check_stream(nodes::unique(faulty(150)));
  std::vector<Example> elements;
  for (const char* word : {"a", "b", "a", "", "ab", "b", "", "abcdefghijklmnopq", "a",
                           "abcdefghijklmnopr", "abcdefghijklmnopq"}) {
    elements.push_back({{"word", text(word)}});
  }
  StreamReading reading(nodes::unique(nodes::items(elements)));
  EXPECT_EQ(reading.epoch().size(), 6u);
}

// Of n: n, n + 1, ... n % 7 of them, shuffled or filtered.
Node::Ref some_of(const Example& element) {
  const int64_t n = number_of(element);
  auto from = nodes::map(range(n % 7),
                         test::number_op([n](int64_t i, const Keys&, uint32_t) { return n + i; }));
  return n % 2 == 0 ? Node::Ref(nodes::shuffle(from, 1))
                    : filtered(from, [](int64_t) { return true; });
}
ref::Dataset ref_some_of(int64_t n) {
  auto from = ref::range(n, n + n % 7);
  return n % 2 == 0 ? ref::shuffle(from, 1) : from;
}

TEST(Unique, a_key_says_which_are_the_same) {
  auto by_ten = test::number_op([](int64_t n, const Keys&, uint32_t) { return n / 10; });
  auto expected = [](ref::Dataset input) -> ref::Dataset {
    return [=](uint64_t epoch) {
      ref::Elements out, keys;
      for (int64_t n : input(epoch)) {
        if (std::find(keys.begin(), keys.end(), n / 10) != keys.end()) continue;
        keys.push_back(n / 10);
        out.push_back(n);
      }
      return out;
    };
  };
  check_stream(nodes::unique(range(300), by_ten), expected(ref::range(0, 300)));
  check_stream(nodes::unique(odds(300), by_ten), expected(ref_odds(300)));
  auto fails = test::number_op([](int64_t n, const Keys&, uint32_t) {
    if (n % 10 == 3) throw std::runtime_error("a three");
    return n / 20;
  });
  auto failing = nodes::unique(range(80), fails);
  check_stream(failing);
  StreamReading reading(failing);
  EXPECT_EQ(numbers(reading.epoch()),
            (std::vector<int64_t>{0, -1, -1, 20, -1, -1, 40, -1, -1, 60, -1, -1}));
}

TEST(FlatMap, one_plan_after_the_other) {
  check_stream(nodes::flat_map(range(80), "some_of", some_of),
               ref::flat_map(ref::range(0, 80), ref_some_of));
  check_stream(nodes::flat_map(odds(80), "some_of", some_of),
               ref::flat_map(ref_odds(80), ref_some_of));
  auto long_ones = [](const Example& element) { return odds(number_of(element) * 10); };
  check_stream(nodes::flat_map(range(9), "odds", long_ones),
               ref::flat_map(ref::range(0, 9), [](int64_t n) { return ref_odds(n * 10); }));
  check_stream(nodes::flat_map(range(0), "some_of", some_of), ref::range(0, 0));
}

TEST(FlatMap, random_numbers_of_each_plan_are_its_own) {
  auto random = [](const Example&) {
    return nodes::map(range(3), test::number_op([](int64_t, const Keys& keys, uint32_t j) {
                        return static_cast<int64_t>(keys.sample(j).rng().next_u64() >> 1);
                      }));
  };
  auto all = nodes::flat_map(range(50), "random", random);
  check_stream(all);
  StreamReading reading(all);
  std::vector<int64_t> drawn = numbers(reading.epoch());
  std::sort(drawn.begin(), drawn.end());
  EXPECT_EQ(std::unique(drawn.begin(), drawn.end()), drawn.end());
  EXPECT_EQ(drawn.size(), 150u);
}

TEST(FlatMap, what_fails_is_one_element) {
  auto sometimes = [](const Example& element) -> Node::Ref {
    if (number_of(element) % 5 == 3) throw std::runtime_error("no such file");
    return range(3);
  };
  auto all = nodes::flat_map(faulty(30), "sometimes", sometimes);
  check_stream(all);
  StreamReading reading(all);
  std::vector<int64_t> made = numbers(reading.epoch());
  EXPECT_EQ(std::count(made.begin(), made.end(), -1), 3 + 6);
  EXPECT_EQ(std::count(made.begin(), made.end(), 2), 30 - 9);
  auto fails_inside = [](const Example&) { return faulty(9); };
  check_stream(nodes::flat_map(range(20), "faulty", fails_inside));
}

TEST(InterleaveInputs, gives_in_turns) {
  std::vector<Node::Ref> inputs;
  std::vector<ref::Dataset> expected;
  for (int64_t n : {40, 0, 90, 200, 3, 7, 150, 1, 1}) {
    const bool stream = inputs.size() % 3 != 2;
    inputs.push_back(stream ? odds(n) : range(n));
    expected.push_back(stream ? ref_odds(n) : ref::range(0, n));
  }
  for (uint64_t cycle : {1, 2, 4, 9, 40}) {
    for (uint64_t block : {1, 2, 7}) {
      check_stream(nodes::interleave(inputs, cycle, block),
                   [=](uint64_t epoch) { return ref::interleave(expected, cycle, block, epoch); });
    }
  }
}

TEST(InterleaveInputs, takes_what_has_no_end_and_what_fails) {
  check_stream(nodes::interleave(
      std::vector<Node::Ref>{nodes::repeat(odds(30), kEndless), range(50), odds(9)}, 2u, 3u));
  check_stream(nodes::interleave(std::vector<Node::Ref>{faulty(80), odds(60)}, 2u, 3u));
  check_stream(nodes::interleave(std::vector<Node::Ref>{odds(0), odds(0)}, 2u, 3u),
               ref::range(0, 0));
  StreamReading reading(nodes::interleave(std::vector<Node::Ref>{odds(60), odds(50)}, 2u, 1u));
  reading.reader().begin(0);
  (void)reading.next(5);
  const State state = reading.reader().save();
  for (const char* wrong : {"which", "inner"}) {
    State other = state;
    other["places"][0].erase(wrong);
    EXPECT_THROW(reading.reader().load(0, other), Error) << wrong;
  }
  State twice = state;
  twice["places"][1]["which"] = 0;
  EXPECT_THROW(reading.reader().load(0, twice), Error);
}

TEST(InterleaveStream, gives_in_turns) {
  for (uint64_t cycle : {1, 2, 5, 40}) {
    for (uint64_t block : {1, 2, 7}) {
      auto inputs = [](uint64_t) {
        std::vector<ref::Dataset> all;
        for (int64_t n = 0; n < 30; ++n) all.push_back(ref_some_of(n));
        return all;
      };
      check_stream(
          nodes::interleave(range(30), "some_of", some_of, cycle, block),
          [=](uint64_t epoch) { return ref::interleave(inputs(epoch), cycle, block, epoch); });
    }
  }
  EXPECT_THROW(nodes::interleave(range(3), "f", some_of, 0, 1), Error);
  EXPECT_THROW(nodes::interleave(range(3), "f", some_of, 1, 0), Error);
}

TEST(ChooseFrom, takes_the_next_of_the_chosen) {
  for (bool stop : {false, true}) {
    check_stream(nodes::choose_from(remainders(odds(400), 3),
                                    std::vector<Node::Ref>{range(90), odds(100), range(70)}, stop),
                 ref::choose_from(ref_remainders(ref_odds(400), 3),
                                  {ref::range(0, 90), ref_odds(100), ref::range(0, 70)}, stop));
  }
  auto beyond = nodes::choose_from(remainders(range(30), 3),
                                   std::vector<Node::Ref>{range(90), faulty(100)}, false);
  check_stream(beyond);
  StreamReading reading(beyond);
  std::vector<int64_t> made = numbers(reading.epoch());
  EXPECT_EQ(std::count(made.begin(), made.end(), -1), 11);
  EXPECT_THROW(nodes::choose_from(range(3), {}), Error);
}

TEST(SampleFrom, draws_as_the_weights_say) {
  std::vector<Node::Ref> inputs{odds(200), range(90), faulty(50)};
  for (bool stop : {false, true}) {
    check_stream(nodes::sample_from(inputs, std::vector<double>{}, 7, stop));
    check_stream(nodes::sample_from(inputs, std::vector<double>{1, 0, 0.2}, 7, stop));
  }
  StreamReading all(nodes::sample_from(inputs, std::vector<double>{}, 7));
  EXPECT_EQ(all.epoch().size(), 240u) << "every element comes";
  auto endless = [](int64_t n) {
    return nodes::repeat(
        nodes::map(range(1), test::number_op([n](int64_t, const Keys&, uint32_t) { return n; })),
        kEndless);
  };
  StreamReading drawn(nodes::sample_from(std::vector<Node::Ref>{endless(0), endless(1), endless(2)},
                                         std::vector<double>{1, 2, 5}, 7));
  std::vector<int64_t> made = numbers(drawn.epoch(0, Chunk::kRows, 8000));
  const double expected[] = {1000, 2000, 5000};
  double chi = 0;
  for (int64_t i = 0; i < 3; ++i) {
    const double own = static_cast<double>(std::count(made.begin(), made.end(), i));
    chi += (own - expected[i]) * (own - expected[i]) / expected[i];
  }
  EXPECT_LT(chi, 18.4);  // 2 degrees of freedom: probability 1 in 10,000
  EXPECT_NE(made, numbers(drawn.epoch(1, Chunk::kRows, 8000)));
  for (std::vector<double> weights : {std::vector<double>{1}, {0, 0, 0}, {1, 1, -1}}) {
    EXPECT_THROW(nodes::sample_from(inputs, weights, 7), Error);
  }
}

}  // namespace
}  // namespace penstock::testing
