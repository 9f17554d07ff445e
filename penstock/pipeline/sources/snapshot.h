#pragma once

#include <string>
#include <utility>

#include "penstock/pipeline/node.h"

namespace penstock {

// The elements of a file that a cache() with a path made, at any place, whatever made them. Each
// one's checksum is verified whenever it is read: damage is that element's failure, kDataLoss,
// which names file, element and byte.
class SnapshotNode : public Node {
 public:
  explicit SnapshotNode(std::string path) : path_(std::move(path)) {}

  std::string title() const override;
  // Errors: kNotFound; kDataLoss: it is no snapshot, or its index is damaged.
  Built build(std::vector<Built> inputs, Builder& builder) const override;

 private:
  std::string path_;
};

}  // namespace penstock
