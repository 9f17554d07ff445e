#include "plan_objects.h"

#include "elements.h"
#include "penstock/pipeline/stages/split_batch.h"
#include "sample.h"

namespace nb = nanobind;

namespace penstock::python {

nb::object PlanObjects::object_of(const PlanOutput::Item& item) {
  if (!sample_.empty()) return columns_of(item);
  if (item.row) return row_object(*item.elements, *item.row);
  const Block block = item.batch();
  if (plan_->parts() == 0) return batch_object(block);
  nb::list parts;
  for (const Block& part : parts_of(block, plan_->parts())) parts.append(batch_object(part));
  return nb::tuple(parts);
}

// Fixed leaves are at the places of RowLayout in a block.
nb::object PlanObjects::columns_of(const PlanOutput::Item& batch) {
  if (columns_.empty() || layout_.rows() != batch.laid_out) {
    layout_ = layout_of(sample_, batch.laid_out);
    columns_.resize(layout_.fields().size());
  }
  for (size_t i = 0; i < columns_.size(); ++i) columns_[i] = layout_.column(batch.data, i);
  Owned owner(owner_capsule(batch.owner));
  PyObject* made = owner ? batch_of(sample_, columns_, batch.rows, owner.get(), nullptr) : nullptr;
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

}  // namespace penstock::python
