#include "penstock/pipeline/transformations/padded_batch.h"

#include <cstdio>
#include <set>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/transformations/batch.h"

namespace penstock {
namespace {

class PaddedBatch : public Batch {
 public:
  PaddedBatch(IndexedRef input, uint64_t n, bool drop_last, Padding padding)
      : Batch(std::move(input), n, drop_last), padding_(std::move(padding)) {
    if (SpecRef spec = this->input()->spec()) (void)padding_.columns(*spec);
  }
  const Padding* padding() const override { return &padding_; }

 private:
  Padding padding_;
};

}  // namespace

PaddedBatchNode::PaddedBatchNode(Ref input, uint64_t n, bool drop_last,
                                 std::vector<Padding::Field> fields)
    : Node({std::move(input)}), n_(n), drop_(drop_last), padding_{std::move(fields)} {
  Batch::check(n, "padded_batch");
  std::set<std::string> names;
  for (const Padding::Field& field : padding_.fields) {
    if (!names.insert(name_of_user(field.name, "padded_batch")).second) {
      throw Error(Code::kInvalidArgument, "padded_batch", "'" + field.name + "' comes twice");
    }
  }
}

std::string PaddedBatchNode::title() const {
  std::string text = "padded_batch(" + std::to_string(n_) + (drop_ ? ", drop_last" : "");
  for (const Padding::Field& field : padding_.fields) {
    text += ", " + field.name + ": ";
    text += (field.shape ? to_string(*field.shape) + " " : "") + Padding::text_of(field.value);
  }
  return text + ")";
}

Built PaddedBatchNode::build(std::vector<Built> inputs, Builder& builder) const {
  return inputs[0].stacked(builder, n_, drop_, [&](IndexedRef input) {
    return std::make_shared<PaddedBatch>(std::move(input), n_, drop_, padding_);
  });
}

}  // namespace penstock
