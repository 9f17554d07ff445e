#include "penstock/pipeline/builder.h"

#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/indexed_stream.h"
#include "penstock/pipeline/parcel.h"
#include "penstock/pipeline/tailed_stream.h"

namespace penstock {

Built Builder::build(const Node& node) {
  std::vector<Built> inputs;
  inputs.reserve(node.inputs().size());
  for (const Node::Ref& input : node.inputs()) {
    inputs.push_back(build(*input));
    if (inputs.back().stream != nullptr && !node.takes_streams()) {
      throw Error(Code::kInvalidArgument, node.title(),
                  "cannot follow " + titles_.back() +
                      ", whose elements only come one after the other" + node.instead_of_streams());
    }
  }
  titles_.push_back(node.title());
  return node.build(std::move(inputs), *this);
}

StreamedRef Builder::as_stream(const Built& built) {
  if (built.stream == nullptr) return indexed_stream(built.indexed);
  if (built.per_output == 1 && is_parcel_source(*built.tail)) return built.stream;
  return tailed_stream(built);
}

const std::shared_ptr<FilePool>& Builder::pool() {
  if (pool_ == nullptr) pool_ = std::make_shared<FilePool>(files_);
  return pool_;
}

}  // namespace penstock
