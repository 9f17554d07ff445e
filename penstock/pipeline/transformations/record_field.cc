#include "penstock/pipeline/transformations/record_field.h"

#include <memory>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/element/nest.h"

namespace penstock {

std::string RecordField::title() const {
  return field_.empty() ? operation_ : std::string(operation_) + "(" + field_ + ")";
}

size_t RecordField::leaf(const ElementSpec& in) const {
  auto refuse = [&](const std::string& why) {
    throw Error(Code::kInvalidArgument, operation_, why + " in " + in.to_string());
  };
  if (!field_.empty()) {
    const std::optional<size_t> leaf = in.find(field_);
    if (!leaf) refuse("there is no field '" + field_ + "'");
    if (in.leaves()[*leaf].kind != LeafKind::kBytes) refuse("'" + field_ + "' is no byte string");
    return *leaf;
  }
  std::optional<size_t> found;
  for (size_t i = 0; i < in.leaves().size(); ++i) {
    if (in.leaves()[i].kind != LeafKind::kBytes) continue;
    if (found) refuse("say by `field` which of several byte strings is meant");
    found = i;
  }
  if (!found) refuse("there is no byte string, as Dataset::tfrecord gives them,");
  return *found;
}

SpecRef RecordField::result(const ElementSpec& in, const SpecRef& parsed) const {
  const size_t at = leaf(in);
  return with_leaf_replaced(in, at, *parsed);
}

std::vector<std::optional<size_t>> RecordField::passes(const ElementSpec& in,
                                                       size_t parsed_leaves) const {
  const size_t at = leaf(in);
  std::vector<std::optional<size_t>> passes(in.leaves().size() - 1 + parsed_leaves);
  for (size_t i = 0; i < at; ++i) passes[i] = i;
  for (size_t i = at + 1; i < in.leaves().size(); ++i) passes[i - 1 + parsed_leaves] = i;
  return passes;
}

}  // namespace penstock
