#include <set>
#include <stdexcept>

#include "penstock/pipeline/api/loader.h"
#include "penstock/pipeline/scheduler/order.h"
#include "penstock/pipeline/sources/sources.h"
#include "penstock/pipeline/stages/function_op.h"
#include "penstock/pipeline/transformations/operations.h"
#include "penstock/pipeline/transformations/transformations.h"
#include "reading.h"

namespace penstock {
namespace {

using testing::error_of;
using testing::numbers;
using testing::range;
using testing::Reading;
using testing::tensor;
using Numbers = std::vector<int64_t>;

// Numbers, of which some fail.
Node::Ref without(Node::Ref input, std::set<int64_t> bad) {
  return nodes::map(
      std::move(input),
      std::make_shared<FunctionOp>("f", [bad](const Example& element, SampleContext&) {
        const int64_t number = element.at("").as_span<const int64_t>()[0];
        if (bad.count(number) > 0) throw std::runtime_error(std::to_string(number));
        return element;
      }));
}

// Numbers below `length`.
Node::Ref faulty(int64_t length, std::set<int64_t> bad) {
  return without(range(length), std::move(bad));
}

// The same as bytes that are to be decoded, with a spec that is known beforehand.
Node::Ref faulty_bytes(int64_t length, std::set<int64_t> bad) {
  std::vector<Example> elements;
  for (int64_t i = 0; i < length; ++i) {
    elements.push_back({{"", testing::text({reinterpret_cast<const char*>(&i),
                                            bad.count(i) > 0 ? 3 : sizeof(i)})}});
  }
  auto spec =
      std::make_shared<ElementSpec>(std::vector<Leaf>{{"", LeafKind::kBytes, DType::kUint8, {-1}}});
  return nodes::map(nodes::items(elements, spec), decode_raw("", DType::kInt64, Shape{}));
}

TEST(OnError, skip_forgives_and_raise_does_not) {
  Reading skip(nodes::on_error(faulty(10, {3}), OnError::kSkip));
  EXPECT_EQ(numbers(skip.at({}, {2, 3, 4}, 5)), (Numbers{2, -1, 4}));
  ASSERT_EQ(skip.failures().size(), 1u);
  EXPECT_EQ(skip.failures()[0].first, 6u);
  EXPECT_EQ(skip.failures()[0].second.decision, Decision::kSkip);
  EXPECT_EQ(skip.failures()[0].second.stage, "map(f)");

  Reading raise(nodes::on_error(faulty(10, {3}), OnError::kRaise));
  raise.at({}, {3});
  EXPECT_EQ(raise.failures()[0].second.decision, Decision::kRaise);
}

TEST(OnError, the_first_one_decides) {
  auto raised = nodes::on_error(faulty(10, {3}), OnError::kRaise);
  auto skipped = nodes::on_error(faulty(10, {3}), OnError::kSkip);
  for (OnError policy : {OnError::kRaise, OnError::kSkip, OnError::kReplace}) {
    Reading above_raise(nodes::on_error(raised, policy));
    EXPECT_EQ(numbers(above_raise.at({}, {3})), Numbers{-1});
    EXPECT_EQ(above_raise.failures()[0].second.decision, Decision::kRaise);
    Reading above_skip(nodes::on_error(skipped, policy));
    EXPECT_EQ(numbers(above_skip.at({}, {3})), Numbers{-1});
    EXPECT_EQ(above_skip.failures()[0].second.decision, Decision::kSkip);
  }
}

TEST(OnError, what_is_above_fails_by_itself) {
  auto skipped = nodes::on_error(range(5), OnError::kSkip);
  Reading reading(nodes::map(
      skipped, std::make_shared<FunctionOp>("g", [](const Example&, SampleContext&) -> Example {
        throw std::runtime_error("g");
      })));
  reading.at({}, {1});
  EXPECT_EQ(reading.failures()[0].second.decision, Decision::kUndecided);
}

TEST(OnError, replace_takes_positions_of_another_permutation) {
  const Order order({.length = 50, .seed = 9});
  for (auto make : {faulty, faulty_bytes}) {
    Reading reading(nodes::on_error(make(50, {3, 40}), OnError::kReplace), 9);
    auto made = numbers(reading.at({2, 0}, {2, 3, 4, 40}, 7));
    Numbers expected = {2, 0, 4, 0};
    for (auto [place, position] : {std::pair{1, 3}, std::pair{3, 40}}) {
      for (uint32_t n = 0;; ++n) {
        const auto other =
            static_cast<int64_t>(order.replacement(2, static_cast<uint64_t>(position), n));
        if (other == 3 || other == 40) continue;
        expected[static_cast<size_t>(place)] = other;
        break;
      }
    }
    EXPECT_EQ(made, expected);
    EXPECT_TRUE(reading.failures().empty());
    ASSERT_EQ(reading.notes().size(), 2u);
    EXPECT_EQ(reading.notes()[0].first, 8u);
    EXPECT_EQ(reading.notes()[0].second.decision, Decision::kReplace);
    EXPECT_EQ(reading.notes()[0].second.position, 3u);
    EXPECT_EQ(numbers(reading.epoch(2)).size(), 50u);
  }
}

TEST(OnError, a_whole_chunk_may_be_replaced) {
  std::set<int64_t> bad;
  for (int64_t i = 0; i < 64; ++i) bad.insert(i);
  Reading reading(nodes::on_error(faulty(1000, bad), OnError::kReplace));
  for (int64_t number : numbers(reading.epoch(0, 0, 64))) EXPECT_GE(number, 64);
  EXPECT_EQ(reading.notes().size(), 64u);
}

TEST(OnError, where_nothing_can_replace_it_the_failure_is_raised) {
  Reading reading(nodes::on_error(faulty(3, {0, 1, 2}), OnError::kReplace));
  EXPECT_EQ(numbers(reading.epoch()), (Numbers{-1, -1, -1}));
  ASSERT_EQ(reading.failures().size(), 3u);
  EXPECT_EQ(reading.failures()[1].second.decision, Decision::kRaise);
  EXPECT_EQ(testing::text_of(reading.failures()[1].second), "1") << "its own";
  auto endless = nodes::repeat(range(3), kEndless);
  EXPECT_EQ(error_of([&] { Reading(nodes::on_error(endless, OnError::kReplace)); }).code(),
            Code::kInvalidArgument);
}

TEST(OnError, what_is_to_be_raised_of_another_element_ends_the_replacing) {
  std::set<int64_t> others;
  for (int64_t i = 0; i < 50; ++i) others.insert(i);
  others.erase(3);
  auto raised = nodes::on_error(faulty(50, others), OnError::kRaise);
  Reading reading(nodes::on_error(without(raised, {3}), OnError::kReplace));
  reading.at({}, {3});
  ASSERT_EQ(reading.failures().size(), 1u);
  EXPECT_EQ(reading.failures()[0].second.decision, Decision::kRaise);
  try {
    std::rethrow_exception(reading.failures()[0].second.error);
  } catch (const std::exception& error) {
    const Order order({.length = 50, .seed = reading.context().seed});
    EXPECT_EQ(error.what(), std::to_string(order.replacement(0, 3, 0)));
  }
}

// The first two calls for row 1 timed out: that of the element, and that of its replacement.
TEST(OnError, what_ran_out_of_time_is_replaced_by_what_did_not) {
  class Poisoned : public Context::Watch {
   public:
    bool progress(uint32_t, uint32_t) override { return true; }
    std::exception_ptr poisoned(uint32_t row, uint32_t call) override {
      if (row != 1 || (calls.size() == 2 && !calls.contains(call))) return nullptr;
      calls.insert(call);
      return std::make_exception_ptr(Error(Code::kTimeout, "Loader", "took too long"));
    }
    void on_exception(bool) override {}

    std::set<uint32_t> calls;
  } watch;
  Reading reading(nodes::on_error(faulty(50, {}), OnError::kReplace));
  reading.context().watch = &watch;
  auto made = numbers(reading.at({}, {5, 6, 7}));
  EXPECT_EQ(made[0], 5);
  EXPECT_NE(made[1], 6);
  EXPECT_GE(made[1], 0);
  EXPECT_EQ(made[2], 7);
  EXPECT_EQ(watch.calls.size(), 2u);
}

TEST(OnError, what_is_lost_within_a_batch_that_is_an_element_is_noted) {
  auto of = [](OnError policy) {
    return nodes::batch(nodes::on_error(faulty(10, {3}), policy), 5, false);
  };
  Reading skip(of(OnError::kSkip));
  EXPECT_EQ(numbers(skip.at({}, {0}, 2)), (Numbers{0, 1, 2, 4}));
  ASSERT_EQ(skip.notes().size(), 1u);
  EXPECT_EQ(skip.notes()[0].first, 2u);
  EXPECT_EQ(skip.notes()[0].second.decision, Decision::kSkip);
  Reading replace(of(OnError::kReplace));
  EXPECT_EQ(numbers(replace.at({}, {0, 1})).size(), 10u);
  ASSERT_EQ(replace.notes().size(), 1u);
  EXPECT_EQ(replace.notes()[0].second.decision, Decision::kReplace);
}

TEST(OnError, notes_go_through_further_stages) {
  auto replaced = nodes::on_error(faulty(50, {3}), OnError::kReplace);
  Reading reading(nodes::map(
      replaced, std::make_shared<FunctionOp>(
                    "g", [](const Example& element, SampleContext&) { return element; })));
  reading.at({}, {3, 4});
  EXPECT_EQ(reading.notes().size(), 1u);
}

}  // namespace
}  // namespace penstock
