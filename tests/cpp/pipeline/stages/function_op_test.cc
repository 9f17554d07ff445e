#include "penstock/pipeline/stages/function_op.h"

#include <atomic>
#include <set>
#include <stdexcept>

#include "penstock/pipeline/sources/sources.h"
#include "penstock/pipeline/transformations/transformations.h"
#include "reading.h"

namespace penstock {
namespace {

using testing::error_of;
using testing::numbers;
using testing::range;
using testing::Reading;
using testing::tensor;

Node::Ref mapped(const Node::Ref& input, FunctionOp::Function f) {
  return nodes::map(input, std::make_shared<FunctionOp>("f", std::move(f)));
}

int64_t number(const Example& element) { return element.at("").as_span<const int64_t>()[0]; }

// Records the calls of user code, like a worker.
class Watch : public Context::Watch {
 public:
  bool progress(uint32_t row, uint32_t) override {
    rows.push_back(row);
    return rows.size() <= most;
  }
  std::exception_ptr poisoned(uint32_t row, uint32_t) override {
    if (bad.count(row) == 0) return nullptr;
    return std::make_exception_ptr(Error(Code::kTimeout, "Loader", "took too long"));
  }
  void on_exception(bool again) override { again ? ++retried : ++lost; }

  std::vector<uint32_t> rows;
  size_t most = 1000;
  std::set<uint32_t> bad;
  int retried = 0, lost = 0;
};

TEST(FunctionOp, makes_an_element_of_an_element) {
  Reading reading(mapped(range(100), [](const Example& element, SampleContext&) {
    int64_t n = number(element);
    return Example{{"square", tensor<int64_t>({}, {n * n})}, {"n", element.at("")}};
  }));
  EXPECT_EQ(reading.stage().spec(), nullptr) << "nobody called it to find out";
  EXPECT_TRUE(reading.stage().costly());
  auto made = reading.at({}, {7, 3, 99}, 20);
  EXPECT_EQ(numbers(made, "square"), (std::vector<int64_t>{49, 9, 9801}));
  EXPECT_EQ(numbers(made, "n"), (std::vector<int64_t>{7, 3, 99}));
}

TEST(FunctionOp, its_random_numbers_are_the_positions) {
  auto drawing = [](const Example& element, SampleContext& context) {
    return Example{{"", element.at("")},
                   {"draw", tensor<int64_t>({}, {int64_t{context.rng().next_u32()}})},
                   {"index", tensor<int64_t>({}, {static_cast<int64_t>(context.index())})}};
  };
  auto chain = mapped(mapped(range(50), drawing), [](const Example& element, SampleContext& c) {
    Example out = element;
    out.set("second", tensor<int64_t>({}, {int64_t{c.rng().next_u32()}}));
    return out;
  });
  Reading reading(chain, 42);
  auto made = reading.at({3, 0}, {30, 11});
  RandomStream first({42, 3, 30, 1}), second({42, 3, 11, 2});
  EXPECT_EQ(numbers(made, "draw")[0], first.next_u32());
  EXPECT_EQ(numbers(made, "second")[1], second.next_u32());
  EXPECT_EQ(numbers(made, "index"), (std::vector<int64_t>{30, 11}));
}

TEST(FunctionOp, what_it_throws_is_the_elements_failure_after_the_retries) {
  std::atomic<int> calls = 0;
  Reading reading(mapped(range(10), [&](const Example& element, SampleContext&) -> Example {
    if (number(element) == 4) {
      ++calls;
      throw std::runtime_error("four");
    }
    return element;
  }));
  Watch watch;
  reading.context().watch = &watch;
  reading.context().retries = 2;
  auto made = reading.at({}, {3, 4, 5});
  EXPECT_EQ(numbers(made), (std::vector<int64_t>{3, -1, 5}));
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(watch.retried, 2);
  EXPECT_EQ(watch.lost, 1);
  EXPECT_EQ(watch.rows, (std::vector<uint32_t>{0, 1, 2}));
  ASSERT_EQ(reading.failures().size(), 1u);
  EXPECT_EQ(reading.failures()[0].second.stage, "map(f)");
  EXPECT_EQ(reading.failures()[0].second.position, 4u);
  EXPECT_EQ(testing::text_of(reading.failures()[0].second), "four");
}

TEST(FunctionOp, a_retry_draws_the_same_numbers) {
  std::vector<uint32_t> draws;
  Reading reading(mapped(range(1), [&](const Example& element, SampleContext& context) {
    draws.push_back(context.rng().next_u32());
    if (draws.size() < 3) throw std::runtime_error("again");
    return element;
  }));
  reading.context().retries = 5;
  EXPECT_EQ(numbers(reading.epoch()), (std::vector<int64_t>{0}));
  EXPECT_EQ(draws, std::vector<uint32_t>(3, draws[0]));
}

TEST(FunctionOp, a_row_that_ran_out_of_time_is_not_tried_again) {
  Reading reading(mapped(range(10), [&](const Example& element, SampleContext&) {
    EXPECT_NE(number(element), 6);
    return element;
  }));
  Watch watch;
  watch.bad = {1};
  reading.context().watch = &watch;
  EXPECT_EQ(numbers(reading.at({}, {5, 6, 7})), (std::vector<int64_t>{5, -1, 7}));
  try {
    std::rethrow_exception(reading.failures()[0].second.error);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kTimeout);
  }
}

TEST(FunctionOp, a_ticket_that_was_taken_away_is_given_up) {
  int calls = 0;
  Reading reading(mapped(range(10), [&](const Example& element, SampleContext&) {
    ++calls;
    return element;
  }));
  Watch watch;
  watch.most = 2;
  reading.context().watch = &watch;
  EXPECT_EQ(error_of([&] { reading.at({}, {1, 2, 3, 4}); }).code(), Code::kClosed);
  EXPECT_EQ(calls, 2);
}

TEST(FunctionOp, lengths_of_results_may_differ_and_names_may_not) {
  Reading reading(mapped(range(10), [](const Example& element, SampleContext&) {
    int64_t n = number(element);
    return Example{{n == 5 ? "y" : "x", Tensor::make(DType::kUint8, {n, 2})}};
  }));
  auto made = reading.at({}, {3, 4, 5, 0});
  EXPECT_EQ(made[0]->at("x").shape(), (Shape{3, 2}));
  EXPECT_EQ(made[1]->at("x").shape(), (Shape{4, 2}));
  EXPECT_FALSE(made[2].has_value());
  EXPECT_EQ(made[3]->at("x").shape(), (Shape{0, 2}));
  EXPECT_NE(testing::text_of(reading.failures()[0].second).find("results must be alike"),
            std::string::npos);
}

TEST(FunctionOp, results_without_data_fail_and_those_with_gaps_are_closed_up) {
  Tensor base = tensor<int64_t>({4}, {1, 2, 3, 4});
  Reading reading(mapped(range(3), [&](const Example& element, SampleContext&) {
    if (number(element) == 0) return Example{};
    if (number(element) == 1) return Example{{"x", Tensor()}};
    return Example{{"x", Tensor::view(DType::kInt64, {2}, base.data(), base.owner(), {16})}};
  }));
  EXPECT_EQ(numbers(reading.epoch(), "x"), (std::vector<int64_t>{-1, -1, 1, 3}));
}

TEST(FunctionOp, strings_that_are_passed_on_stay_strings) {
  auto spec = std::make_shared<ElementSpec>(
      std::vector<Leaf>{{"name", LeafKind::kText, DType::kUint8, {-1}}}, ".");
  auto items = nodes::items(
      std::vector<Example>{{{"name", testing::text("a")}}, {{"name", testing::text("bcd")}}}, spec);
  Reading reading(mapped(items, [](const Example& element, SampleContext&) { return element; }));
  Scratch scratch;
  Context context{scratch};
  auto reader = reading.stage().reader(context);
  Chunk chunk(scratch);
  chunk.reset(nullptr, 2);
  reader->fetch({}, std::vector<uint64_t>{0, 1}, chunk, 0);
  EXPECT_EQ(*chunk.spec(), *spec);
  EXPECT_EQ(chunk.shape(0, 1)[0], 3);
}

TEST(FunctionOp, may_be_mapped_over_batches) {
  auto sums = mapped(nodes::batch(range(10), 4, false), [](const Example& batch, SampleContext&) {
    int64_t sum = 0;
    for (int64_t n : batch.at("").as_span<const int64_t>()) sum += n;
    return Example{{"sum", tensor<int64_t>({}, {sum})}};
  });
  EXPECT_EQ(numbers(Reading(sums).epoch(), "sum"), (std::vector<int64_t>{6, 22, 17}));
}

TEST(FieldFunctionOp, writes_where_the_values_are_wanted) {
  Tensor x = tensor<float>({4, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  auto source = nodes::arrays(Example{{"x", x}, {"label", tensor<int64_t>({4}, {1, 2, 3, 4})}});
  auto sum = std::make_shared<FieldFunctionOp<float, double>>(
      "sum", "x", Shape{}, [](std::span<const float> values, std::span<double> result) {
        if (values[0] == 7) throw std::runtime_error("seven");
        result[0] = values[0] + values[1] + values[2];
      });
  Reading reading(nodes::map(source, sum));
  EXPECT_EQ(reading.stage().spec()->to_string(), "{x: float64 (), label: int64 ()}");
  EXPECT_FALSE(reading.stage().costly());
  auto made = reading.epoch();
  EXPECT_EQ(made[1]->at("x").as_span<const double>()[0], 15);
  EXPECT_FALSE(made[2].has_value());
  EXPECT_EQ(numbers(made, "label"), (std::vector<int64_t>{1, 2, -1, 4}));
  EXPECT_EQ(reading.failures()[0].second.stage, "map(sum(x))");
}

TEST(FieldFunctionOp, keeps_the_shape_where_none_is_given) {
  auto items = nodes::items(std::vector<Example>{{{"", tensor<int64_t>({1}, {5})}},
                                                 {{"", tensor<int64_t>({2}, {6, 7})}}});
  auto twice = std::make_shared<FieldFunctionOp<int64_t, int64_t>>(
      "twice", "", std::nullopt, [](std::span<const int64_t> values, std::span<int64_t> result) {
        for (size_t i = 0; i < values.size(); ++i) result[i] = 2 * values[i];
      });
  EXPECT_EQ(numbers(Reading(nodes::map(items, twice)).epoch()), (std::vector<int64_t>{10, 12, 14}));
  auto nothing = [](std::span<const float>, std::span<float>) {};
  auto wrong = std::make_shared<FieldFunctionOp<float, float>>("wrong", "", std::nullopt, nothing);
  Error error = error_of([&] { Reading(nodes::map(items, wrong)); });
  EXPECT_NE(std::string(error.what()).find("'' is int64, and not float32"), std::string::npos);
}

}  // namespace
}  // namespace penstock
