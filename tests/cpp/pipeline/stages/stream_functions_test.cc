// Streams of functions: generators, and scans with a carry.
#include <gtest/gtest.h>

#include <stdexcept>

#include "penstock/pipeline/sources/sources.h"
#include "penstock/pipeline/transformations/transformations.h"
#include "streams.h"

namespace penstock::testing {
namespace {

namespace ref = reference;

Example number(int64_t n) { return {{"", tensor<int64_t>({}, {n})}}; }

Pull count_from(uint64_t epoch, int64_t end) {
  return [n = static_cast<int64_t>(epoch), end]() mutable {
    return n >= end ? std::nullopt : std::optional(number(n++));
  };
}

TEST(Generator, gives_what_the_function_gives) {
  for (int64_t end : {0, 1, 64, 65, 150}) {
    auto counting = [end](uint64_t epoch) { return count_from(epoch, end); };
    auto expected = [end](uint64_t epoch) {
      return ref::range(static_cast<int64_t>(epoch), end)(epoch);
    };
    check_stream(nodes::generator("count", counting), expected);
    check_stream(nodes::repeat(nodes::generator("count", counting), 2), ref::repeat(expected, 2));
    check_stream(filtered(nodes::generator("count", counting), is_odd),
                 ref::filter(expected, is_odd));
  }
}

TEST(Generator, elements_may_differ_in_length) {
  auto lists = [](uint64_t) -> Pull {
    return [n = int64_t{0}]() mutable -> std::optional<Example> {
      if (n == 90) return std::nullopt;
      const int64_t length = n++ % 5;
      return Example{
          {"list", tensor(Shape{length}, std::vector<int64_t>(static_cast<size_t>(length), n))}};
    };
  };
  check_stream(nodes::generator("lists", lists));
}

TEST(Generator, an_exception_ends_it_behind_what_came_before) {
  auto breaking = [](uint64_t) -> Pull {
    return [n = int64_t{0}]() mutable -> std::optional<Example> {
      if (n == 10) throw std::runtime_error("the line is dead");
      return number(n++);
    };
  };
  StreamReading reading(nodes::generator("breaking", breaking));
  reading.reader().begin(0);
  EXPECT_EQ(reading.next(64).size(), 10u);
  EXPECT_EQ(reading.reader().save().dump(), "{\"taken\":10}");
  for (int again = 0; again < 2; ++again) EXPECT_THROW(reading.next(64), std::runtime_error);
}

std::pair<Example, Example> add(const Example& carry, const Example& element) {
  Example sum = number(number_of(carry) + number_of(element));
  return {sum, sum};
}

ref::Dataset ref_sums(ref::Dataset input, int64_t initial) {
  return [=](uint64_t epoch) {
    ref::Elements out;
    int64_t sum = initial;
    for (int64_t element : input(epoch)) out.push_back(sum += element);
    return out;
  };
}

TEST(Scan, carries_on) {
  check_stream(nodes::scan(range(150), "add", number(5), add), ref_sums(ref::range(0, 150), 5));
  check_stream(nodes::scan(odds(300), "add", number(0), add), ref_sums(ref_odds(300), 0));
  check_stream(nodes::scan(range(0), "add", number(0), add), ref::range(0, 0));
}

TEST(Scan, what_is_handed_on_may_be_what_was_given) {
  // The previous element together with the current one.
  auto delay = [](const Example& carry, const Example& element) {
    return std::pair(element, carry);
  };
  check_stream(nodes::scan(range(150), "delay", number(-1), delay),
               [](uint64_t) { return ref::range(-1, 149)(0); });
}

TEST(Scan, what_is_carried_survives_a_state_bit_by_bit) {
  // Carries of every length, so that each padding of the base64 text occurs.
  auto grow = [](const Example& carry, const Example& element) {
    std::vector<uint8_t> bytes;
    for (int64_t i = 0; i < number_of(element) % 11; ++i) {
      bytes.push_back(static_cast<uint8_t>(37 * i + 200));
    }
    const double before = carry.at("sum").as_span<const double>()[0];
    int64_t all = static_cast<int64_t>(before);
    for (uint8_t byte : carry.at("bytes").as_span<const uint8_t>()) all += byte;
    Example next{{"sum", tensor<double>({}, {before + 0.1})},
                 {"bytes", tensor(Shape{static_cast<int64_t>(bytes.size())}, bytes)}};
    return std::pair(next, number(all));
  };
  Example initial{{"sum", tensor<double>({}, {0.0})}, {"bytes", tensor<uint8_t>({0}, {})}};
  auto scan = nodes::scan(range(100), "grow", initial, grow);
  check_stream(scan);
  StreamReading reading(scan);
  reading.reader().begin(0);
  (void)reading.next(7);
  const State state = reading.reader().save();
  auto broken = [&](const char* member, const State& value) {
    State wrong = state;
    wrong["carry"][member] = value;
    EXPECT_THROW(reading.reader().load(0, wrong), Error) << member << value;
  };
  broken("spec", "AAAA");
  broken("spec", 3);
  broken("shapes", {{}, {1'000'000'000}});
  broken("shapes", {{}, {-1}});
  broken("shapes", {{1}, {1}});
  broken("shapes", State::array());
  broken("shapes", "long");
  broken("data", "AAAA");
  broken("data", "****");
  broken("data", 4);
}

TEST(Scan, what_fails_leaves_the_carry_as_it_was) {
  auto careful = [](const Example& carry, const Example& element) {
    if (number_of(element) % 10 == 3) throw std::runtime_error("a three");
    return add(carry, element);
  };
  auto scan = nodes::scan(faulty(25), "careful", number(0), careful);
  check_stream(scan);
  StreamReading reading(scan);
  EXPECT_EQ(numbers(reading.epoch()),
            (std::vector<int64_t>{0,  1,  3,  -1,  7,  12,  18,  -1,  26,  35,  45, 56, 68,
                                  -1, 82, 97, 113, -1, 131, 150, 170, 191, 213, -1, 237}));
}

}  // namespace
}  // namespace penstock::testing
