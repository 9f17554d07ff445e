// One element has another schema than those before it: only it fails, for any number of elements
// made at a time, and from any position.
#include "penstock/pipeline/stages/schema_checker.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>
#include <vector>

#include "penstock/pipeline/sources/sources.h"
#include "penstock/pipeline/stages/function_op.h"
#include "penstock/pipeline/transformations/transformations.h"
#include "streams.h"

namespace penstock::testing {
namespace {

Example one(int64_t n, bool real = false) {
  if (real) return {{"", tensor<double>({}, {static_cast<double>(n)})}};
  return {{"", tensor<int64_t>({}, {n})}};
}

Node::Ref by_function(Node::Ref input, FunctionOp::Function function) {
  return nodes::map(std::move(input), std::make_shared<FunctionOp>("f", std::move(function)));
}

// Integers, except one floating-point number.
Node::Ref with_one_real(Node::Ref input, int64_t at) {
  return by_function(std::move(input), [at](const Example& element, SampleContext&) {
    return one(number_of(element), number_of(element) == at);
  });
}

Node::Ref generated(int64_t begin, int64_t end, bool real) {
  return nodes::generator("count", [=](uint64_t) -> Pull {
    return [=, n = begin]() mutable -> std::optional<Example> {
      if (n >= end) return std::nullopt;
      return one(n++, real);
    };
  });
}

bool every_one(int64_t) { return true; }

// Which of the elements fail.
std::vector<size_t> failed(const Node::Ref& node, uint32_t most) {
  StreamReading reading(node);
  reading.reader().begin(0);
  std::vector<size_t> which;
  for (size_t before = 0;;) {
    const size_t count = reading.next(most).size();
    if (count == 0) return which;
    for (const auto& [row, failure] : reading.failures()) which.push_back(before + row);
    before += count;
  }
}

TEST(SchemaChecker, one_that_is_unlike_fails_alone_however_many_are_made_at_a_time) {
#ifdef PENSTOCK_SANITIZED
  constexpr int64_t kPlaces[] = {1, 63, 149};
#else
  constexpr int64_t kPlaces[] = {1, 2, 62, 63, 64, 65, 127, 149};
#endif
  for (const int64_t at : kPlaces) {
    const auto schema_differs = static_cast<size_t>(at);
    const std::vector<Node::Ref> chains = {
        with_one_real(range(150), at),
        with_one_real(filtered(range(150), every_one), at),
        by_function(with_one_real(range(150), at),
                    [](const Example& element, SampleContext&) {
                      return Example{{"same", element.at("").copy()}};
                    }),
        nodes::scan(range(150), "mixed", one(0),
                    [at](const Example& carry, const Example& element) {
                      const int64_t n = number_of(element);
                      return std::pair(carry, one(n, n == at));
                    }),
        nodes::concatenate(std::vector<Node::Ref>{
            generated(0, at, false), generated(at, at + 1, true), generated(at + 1, 150, false)}),
        nodes::flat_map(range(150), "open", [at](const Example& element) {
          const int64_t n = number_of(element);
          return generated(n, n + 1, n == at);
        })};
    for (const Node::Ref& chain : chains) {
      check_stream(chain);
      for (uint32_t most : {1u, 7u, Chunk::kRows}) {
        EXPECT_EQ(failed(chain, most), std::vector<size_t>{schema_differs}) << chain->title;
      }
    }
  }
}

TEST(SchemaChecker, inputs_that_differ_are_inferred_from_the_first_element) {
  const auto choice = [](int64_t n) { return n % 3 == 1 ? 1 : 0; };
  const Node::Ref choices = by_function(range(90), [=](const Example& element, SampleContext&) {
    return one(choice(number_of(element)));
  });
  const Node::Ref chosen = nodes::choose_from(
      choices, std::vector<Node::Ref>{generated(0, 60, false), generated(0, 30, true)}, true);
  check_stream(chosen);
  std::vector<size_t> expected;
  for (size_t n = 1; n < 90; n += 3) expected.push_back(n);
  EXPECT_EQ(failed(chosen, 64), expected);
}

TEST(SchemaChecker, rows_of_columns_are_alike_too) {
  // A batch whose rows differ in size is bytes to every stage but unbatch.
  const Node::Ref lists = by_function(range(64), [](const Example& element, SampleContext&) {
    const int64_t n = number_of(element);
    const size_t length = 1 + n % 2;
    const Shape shape{static_cast<int64_t>(length)};
    if (n / 4 != 5) return Example{{"", tensor(shape, std::vector<int64_t>(length, n))}};
    return Example{{"", tensor(shape, std::vector<float>(length, 0.5F))}};
  });
  const Node::Ref rows = nodes::unbatch(nodes::ragged_batch(lists, 4, false));
  EXPECT_EQ(failed(rows, 64), (std::vector<size_t>{20, 21, 22, 23}));
}

TEST(SchemaChecker, elements_are_made_again_only_where_some_are_unlike) {
  int calls = 0;
  const auto counting = [&calls](int64_t at) {
    return by_function(range(64), [&calls, at](const Example& element, SampleContext&) {
      ++calls;
      return one(number_of(element), number_of(element) == at);
    });
  };
  EXPECT_TRUE(failed(counting(-1), 64).empty());
  EXPECT_EQ(calls, 64);
  calls = 0;
  EXPECT_EQ(failed(counting(63), 64).size(), 1u);
  EXPECT_EQ(calls, 128);
}

TEST(SchemaChecker, a_state_says_what_elements_were_only_where_they_tell) {
  StreamReading known(range(10));
  known.reader().begin(0);
  known.next(3);
  EXPECT_EQ(known.reader().save().dump(), "{\"index\":3}");
  StreamReading inferred(with_one_real(range(10), 5));
  inferred.reader().begin(0);
  EXPECT_EQ(inferred.reader().save().dump(), "{\"index\":0}");
  inferred.next(3);
  State state = inferred.reader().save();
  ASSERT_TRUE(state.contains("alike"));
  state["index"] = 5;
  inferred.reader().load(0, state);
  ASSERT_EQ(inferred.next(1).size(), 1u);
  EXPECT_EQ(inferred.failures().size(), 1u);
  for (const State& damaged : {State(3), State("AAAA"), State("not base64"), State(nullptr)}) {
    state["alike"] = damaged;
    EXPECT_EQ(error_of([&] { inferred.reader().load(0, state); }).code(), Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace penstock::testing
