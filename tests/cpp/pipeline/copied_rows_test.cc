// Batches of arrays in memory, whose rows are only copied; also with indices listed by a sampler.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/engine/outcome.h"
#include "penstock/pipeline/engine/plan_engine.h"
#include "penstock/pipeline/engine/plan_output.h"
#include "penstock/pipeline/engine/samples.h"
#include "penstock/pipeline/plan/plan.h"
#include "penstock/pipeline/scheduler/order.h"
#include "penstock/pipeline/sources/sources.h"

namespace penstock {
namespace {

constexpr int64_t kSourceRows = 1000;

Tensor counted(Shape shape) {
  Tensor made = Tensor::make(DType::kInt64, std::move(shape));
  auto values = made.as_span<int64_t>();
  std::iota(values.begin(), values.end(), 0);
  return made;
}

// Two columns, the second one a strided view of a wider table.
Example columns() {
  Tensor wide = counted({kSourceRows, 4});
  Tensor first = Tensor::view(DType::kInt64, {kSourceRows}, wide.data(), wide.owner(), {32}, false);
  return {{"x", counted({kSourceRows, 3})}, {"first", first}};
}

// Of both columns.
void expect_rows(const Example& batch, const std::vector<uint64_t>& indices) {
  auto x = batch.at("x").as_span<const int64_t>();
  auto first = batch.at("first").as_span<const int64_t>();
  ASSERT_EQ(first.size(), indices.size());
  for (size_t i = 0; i < indices.size(); ++i) {
    const auto row = static_cast<int64_t>(indices[i]);
    EXPECT_EQ(first[i], 4 * row);
    for (int64_t k = 0; k < 3; ++k) EXPECT_EQ(x[3 * i + k], 3 * row + k);
  }
}

TEST(CopiedRows, stand_in_the_plans_order_whoever_copies_them) {
  for (uint32_t workers : {0, 1, 3}) {
    for (uint64_t rows : {1, 64, 100}) {
      Order order({.length = kSourceRows, .batch_size = rows, .shuffle = true, .seed = 3});
      Loader feed = Dataset::arrays(columns())
                        .shuffle({.seed = 3})
                        .batch(rows)
                        .build({.workers = workers, .max_queue_size = 4});
      for (uint64_t epoch = 0; epoch < 2; ++epoch) {
        uint64_t step = 0;
        for (auto& batch : feed.epoch()) {
          std::vector<uint64_t> indices(order.samples_in(0, step));
          order.indices(epoch, 0, step++, 0, indices);
          expect_rows(batch, indices);
        }
        EXPECT_EQ(step, order.steps());
      }
    }
  }
}

TEST(CopiedRows, may_be_of_several_rounds_of_the_arrays) {
  Loader feed = Dataset::arrays(columns()).take(10).repeat(3).batch(7).build({.workers = 2});
  uint64_t next = 0;
  for (auto& batch : feed.epoch()) {
    std::vector<uint64_t> indices(std::min<uint64_t>(7, 30 - next));
    for (uint64_t& index : indices) index = next++ % 10;
    expect_rows(batch, indices);
  }
  EXPECT_EQ(next, 30u);
}

bool copied(const Dataset& dataset) { return Plan(*dataset.node()).copied().rows != nullptr; }

TEST(CopiedRows, are_those_of_arrays_below_index_arithmetic) {
  const Dataset arrays = Dataset::arrays(columns());
  EXPECT_TRUE(copied(arrays.batch(4)));
  EXPECT_TRUE(copied(arrays.shuffle({.seed = 1}).take(5).repeat(2).batch(4)));
  EXPECT_FALSE(copied(arrays));  // elements, one by one
  EXPECT_FALSE(copied(arrays.map(cast(DType::kFloat32)).batch(4)));
  EXPECT_FALSE(copied(Dataset::range(0, 9, 1).batch(4)));
  Tensor x = counted({kSourceRows, 3});
  Tensor backwards = Tensor::view(DType::kInt64, {kSourceRows, 3},
                                  x.data() + 24 * (kSourceRows - 1), x.owner(), {-24, 8}, false);
  EXPECT_FALSE(copied(Dataset::arrays({{"x", backwards}}).batch(4)));
  EXPECT_FALSE(copied(Dataset(nodes::arrays(Example{{"x", x}}, "", {true})).batch(4)));
}

using Lists = std::vector<std::vector<uint64_t>>;

// The same lists in every epoch.
class FixedLists : public Tickets {
 public:
  FixedLists(Lists lists, Allocator& arena) : lists_(std::move(lists)), arena_(arena) {}
  std::optional<uint64_t> steps(uint64_t, uint64_t) override { return std::nullopt; }
  Described describe(const Position& at, BatchEntry& entry) override {
    if (at.step >= lists_.size()) return Described::kEnd;
    std::vector<uint64_t> words = {0, lists_[at.step].size() * sizeof(uint64_t)};
    words.insert(words.end(), lists_[at.step].begin(), lists_[at.step].end());
    void* space = arena_.allocate(words.size() * sizeof(uint64_t));
    std::memcpy(space, words.data(), words.size() * sizeof(uint64_t));
    entry.input_offset = arena_.region()->offset_of(space);
    entry.rows = static_cast<uint32_t>(lists_[at.step].size());
    return Described::kPosted;
  }

 private:
  Lists lists_;
  Allocator& arena_;
};

// A plan over listed batches, run in line.
class Listed {
 public:
  explicit Listed(Lists lists)
      : plan_(std::make_shared<const Plan>(*listed_batches(nodes::arrays(columns()), 8))),
        ring_(TicketRing::create({8, 1, 1, 8, {}}, false)),
        arena_(Region::create(Region::Kind::kPrivate)),
        rows_(arena_),
        tickets_(plan_, false),
        scheduler_(*ring_, arena_, tickets_, budget_, options(),
                   [](Task& task) { take_outcome(task); }),
        output_(plan_, 0, scheduler_, tickets_),
        worker_(worker_of_plan(plan_, {}, *ring_, [] { return LocalTransport().outlet(); })) {
    tickets_.set_describer(std::make_unique<FixedLists>(std::move(lists), arena_));
    scheduler_.begin_epoch();
  }

  // The next batch; nothing at the epoch's end. Throws the batch's error.
  std::optional<Example> next() {
    for (;;) {
      switch (scheduler_.poll(epoch_)) {
        case Scheduler::Poll::kWait:
          serve_entry(*ring_, 0, *scheduler_.next_open(), *worker_, &rows_);
          break;
        case Scheduler::Poll::kBatch: {
          Task& task = ring_->task_at(scheduler_.current_seq(), 0);
          if (scheduler_.failed_granule()) throw error_in(task);
          const uint64_t bytes = task.bytes;
          take_outcome(task);
          return output_.take(bytes, 0, {})->batch().batch();
        }
        default:
          ++epoch_;
          scheduler_.begin_epoch();
          return std::nullopt;
      }
    }
  }
  PlanOutput& output() { return output_; }
  Scheduler& feed() { return scheduler_; }

 private:
  static Scheduler::Options options() {
    Scheduler::Options options;
    options.queue = 1;
    options.workers = 0;
    return options;
  }

  std::shared_ptr<const Plan> plan_;
  std::unique_ptr<TicketRing> ring_;
  Allocator arena_;
  LocalMemory rows_;
  PlanTickets tickets_;
  ByteBudget budget_{UINT64_MAX};
  Scheduler scheduler_;
  PlanOutput output_;
  std::unique_ptr<TicketRunner> worker_;
  uint64_t epoch_ = 0;
};

TEST(ListedBatches, have_the_rows_that_their_tickets_list) {
  const Lists lists = {{999, 0, 999}, {5}, {1, 2, 3, 4, 5, 6, 7, 8}};
  Listed listed(lists);
  for (uint64_t epoch = 0; epoch < 2; ++epoch) {
    for (const auto& list : lists) expect_rows(listed.next().value(), list);
    EXPECT_FALSE(listed.next());
  }
}

TEST(ListedBatches, have_places) {
  const Lists lists = {{1, 2}, {3}, {4, 5}};
  Listed listed(lists);
  expect_rows(listed.next().value(), lists[0]);
  const LoaderState state = listed.output().state();
  EXPECT_EQ(state.batches, 1u);
  expect_rows(listed.next().value(), lists[1]);
  const PlanOutput::Place place = listed.output().place_of(state);
  listed.feed().seek(place.position, place.ahead);
  listed.output().arrived(place);
  expect_rows(listed.next().value(), lists[1]);
  expect_rows(listed.next().value(), lists[2]);
  EXPECT_FALSE(listed.next());
}

TEST(ListedBatches, refuse_rows_that_are_not_there) {
  Listed listed({{3, 1000}});
  try {
    listed.next();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("index 1000 is beyond the last row"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace penstock
