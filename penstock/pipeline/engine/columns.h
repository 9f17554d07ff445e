#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "penstock/memory/batch_layout.h"
#include "penstock/pipeline/feed/order.h"
#include "penstock/workers/worker.h"

namespace penstock {

// Arrays in memory whose rows are samples: batches are gathered from them natively.
struct Column {
  const std::byte* data = nullptr;
  uint64_t row_bytes = 0;
  uint64_t stride = 0;  // bytes from row to row
};

// A worker that gathers. Each thread has its own; the arrays outlive all of them.
class ColumnsWorker : public Fulfiller {
 public:
  // `spec`: opaque bytes that describe a batch's structure to the consumer; `fields`: one a column.
  ColumnsWorker(std::vector<Column> columns, std::vector<Field> fields, std::vector<std::byte> spec,
                const Order& order)
      : columns_(std::move(columns)),
        fields_(std::move(fields)),
        spec_(std::move(spec)),
        order_(order) {}

  void run(const Ticket& ticket, Slot& slot) override;

 private:
  void take_listed(const std::byte* listed, uint32_t begin);

  std::vector<Column> columns_;
  std::vector<Field> fields_;
  std::vector<std::byte> spec_;
  Order order_;
  RowLayout layout_;
  std::vector<uint64_t> indices_;
};

}  // namespace penstock
