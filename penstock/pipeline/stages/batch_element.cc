#include "penstock/pipeline/stages/batch_element.h"

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/pipeline/element/column_block.h"

namespace penstock {

void BatchElement::give(const Collector& rows, const ElementSpec* declared, bool ragged, Chunk& out,
                        uint32_t row) {
  refuse_columns(*rows.spec());
  settle(rows, declared, ragged, out);
  const std::span<const Leaf> leaves = made_->leaves();
  if (made_->fixed()) {  // all leaves are fixed: write them in one pass
    const BlockLayout layout = rows.layout(rows.rows());
    std::byte* block = scratch_.take(layout.bytes());
    rows.write(layout, block);
    for (size_t i = 0; i < leaves.size(); ++i) {
      out.view(i, row, layout.fixed().column(block, layout.fixed_place(i)), leaves[i].shape);
    }
    return;
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (leaves[i].kind == LeafKind::kColumn) {
      const std::span<const std::byte> column = rows.column(i);
      const auto bytes = static_cast<int64_t>(column.size());
      out.view(i, row, column.data(), {&bytes, 1});
    } else {
      out.view(i, row, rows.fixed_column(i), leaves[i].shape);
    }
  }
}

bool BatchElement::is_column(const ElementSpec& spec, size_t leaf, const ElementSpec* declared,
                             bool ragged) {
  const Leaf& of = spec.leaves()[leaf];
  if (!of.fixed()) return true;
  return ragged && !of.shape.empty() && (declared == nullptr || !declared->leaves()[leaf].fixed());
}

void BatchElement::settle(const Collector& rows, const ElementSpec* declared, bool ragged,
                          Chunk& out) {
  if (made_ == nullptr || made_of_ != rows.spec() || made_rows_ != rows.rows()) {
    std::vector<Leaf> leaves(rows.spec()->leaves().begin(), rows.spec()->leaves().end());
    for (size_t i = 0; i < leaves.size(); ++i) {
      Leaf& leaf = leaves[i];
      if (is_column(*rows.spec(), i, declared, ragged)) {
        leaf = {leaf.name, LeafKind::kColumn, DType::kUint8, {-1}};
      } else {
        leaf.kind = LeafKind::kDense;
        leaf.shape.insert(leaf.shape.begin(), static_cast<int64_t>(rows.rows()));
      }
    }
    made_ = std::make_shared<ElementSpec>(std::move(leaves), rows.spec()->nest());
    made_of_ = rows.spec();
    made_rows_ = rows.rows();
  }
  if (out.settle(made_)) return;
  throw Error(
      Code::kInvalidArgument, "batch",
      "batches of different elements: " + out.spec()->to_string() + " and " + made_->to_string());
}

}  // namespace penstock
