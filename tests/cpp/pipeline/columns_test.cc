#include "penstock/pipeline/engine/columns.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/memory/allocator.h"
#include "penstock/pipeline/feed/feed.h"
#include "penstock/pipeline/feed/tickets.h"

namespace penstock {
namespace {

// Two columns, the second one a strided view of a wider table.
struct Table {
  explicit Table(uint64_t rows) : x(rows * 3), wide(rows * 4) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<int32_t>(i);
    for (size_t i = 0; i < wide.size(); ++i) wide[i] = static_cast<int64_t>(i) * 10;
  }
  std::vector<Column> columns() const {
    return {{reinterpret_cast<const std::byte*>(x.data()), 12, 12},
            {reinterpret_cast<const std::byte*>(wide.data()), 8, 32}};
  }
  static std::vector<Field> fields() {
    return {Field::of(DType::kInt32, {3}), Field::of(DType::kInt64, {})};
  }
  std::vector<int32_t> x;
  std::vector<int64_t> wide;
};

TEST(ColumnsWorker, rows_are_gathered_in_the_plans_order_by_any_number_of_threads) {
  constexpr uint64_t kRows = 1000;
  Table table(kRows);
  for (uint32_t threads : {1, 3}) {
    for (uint64_t batch : {1, 64, 100}) {
      Order order({.length = kRows, .batch_size = batch, .shuffle = true, .seed = 3});
      IndexedTickets tickets(order);
      Feed::Options options;
      options.queue = 4;
      options.workers = threads;
      options.granule_rows = 32;
      auto board = Board::create({16, static_cast<uint32_t>((batch + 31) / 32), threads}, false);
      Allocator arena(Region::create(Region::Kind::kPrivate));
      LocalRows memory(arena);
      Feed feed(*board, arena, tickets, options, [](Unit&) {});
      std::vector<std::thread> workers;
      for (uint32_t w = 0; w < threads; ++w) {
        workers.emplace_back([&, w] {
          ColumnsWorker gather(table.columns(), Table::fields(), {std::byte('c')}, order);
          serve(*board, w, gather, &memory);
        });
      }
      feed.begin_epoch();
      for (uint64_t epoch = 0; epoch < 2;) {
        Feed::Poll poll = feed.poll(epoch);
        if (poll == Feed::Poll::kEpochEnd) {
          ++epoch;
          continue;
        }
        if (poll == Feed::Poll::kWait) {
          feed.wait(-1);
          continue;
        }
        Post& post = feed.current();
        RowLayout layout(Table::fields(), post.rows);
        std::vector<uint64_t> indices(post.rows);
        order.indices(post.epoch, post.base, post.step, 0, indices);
        Lease lease = feed.take_rows();
        for (uint32_t row = 0; row < post.rows; ++row) {
          ASSERT_EQ(std::memcmp(layout.row(lease.data(), 0, row), &table.x[indices[row] * 3], 12),
                    0);
          ASSERT_EQ(std::memcmp(layout.row(lease.data(), 1, row), &table.wide[indices[row] * 4], 8),
                    0);
        }
        feed.deliver(layout.bytes(), post.rows);
      }
      EXPECT_EQ(board->consumer().samples.get(), 2 * kRows);
      board->close();
      for (auto& worker : workers) worker.join();
    }
  }
}

}  // namespace
}  // namespace penstock
