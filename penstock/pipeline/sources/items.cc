#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/element/example_rows.h"
#include "penstock/pipeline/sources/sources.h"

namespace penstock {
namespace {

class Items : public Indexed {
 public:
  Items(const std::vector<Example>& elements, SpecRef spec)
      : length_(elements.size()), spec_(std::move(spec)) {
    if (length_ == 0) return;
    columns_.resize(spec_->leaves().size());
    for (size_t leaf = 0; leaf < columns_.size(); ++leaf) {
      columns_[leaf].reserve(length_);
      for (const Example& element : elements) {
        columns_[leaf].push_back(element[leaf].second.contiguous());
      }
    }
  }

  uint64_t length(uint64_t) const override { return length_; }
  SpecRef spec() const override { return spec_; }
  bool costly() const override { return false; }
  std::unique_ptr<IndexedReader> reader(Context&) const override {
    return std::make_unique<Reader>(*this);
  }

 private:
  class Reader : public IndexedReader {
   public:
    explicit Reader(const Items& items) : items_(items) {}
    void fetch(const At&, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
      for (size_t leaf = 0; leaf < items_.columns_.size(); ++leaf) {
        const std::vector<Tensor>& column = items_.columns_[leaf];
        for (size_t i = 0; i < positions.size(); ++i) {
          const Tensor& tensor = column[positions[i]];
          out.view(leaf, static_cast<uint32_t>(row + i), tensor.data(), tensor.shape());
        }
      }
    }

   private:
    const Items& items_;
  };

  uint64_t length_;
  SpecRef spec_;
  std::vector<std::vector<Tensor>> columns_;  // by leaf
};

ElementSpec spec_of(const Example& element) {
  std::vector<Leaf> leaves;
  for (const auto& [name, tensor] : element) {
    if (!tensor.defined()) {
      throw Error(Code::kInvalidArgument, "items", "'" + name + "' of an element is no array");
    }
    leaves.push_back({name, LeafKind::kDense, tensor.dtype(), tensor.shape()});
  }
  return ElementSpec(std::move(leaves));
}

SpecRef merged(const std::vector<Example>& elements) {
  SpecRef spec;
  for (size_t i = 0; i < elements.size(); ++i) {
    if (spec != nullptr && fits(elements[i], *spec)) continue;
    ElementSpec own = spec_of(elements[i]);
    if (spec == nullptr) {
      spec = std::make_shared<ElementSpec>(std::move(own));
      continue;
    }
    auto both = spec->merged(own);
    if (!both) {
      throw Error(Code::kInvalidArgument, "items",
                  "elements must be alike: element 0 is " + spec->to_string() + ", element " +
                      std::to_string(i) + " is " + own.to_string());
    }
    spec = std::make_shared<ElementSpec>(std::move(*both));
  }
  return spec;
}

}  // namespace

Node::Ref nodes::items(std::vector<Example> elements, SpecRef spec) {
  if (spec == nullptr) {
    spec = merged(elements);
  } else {
    for (size_t i = 0; i < elements.size(); ++i) {
      if (fits(elements[i], *spec)) continue;
      throw Error(Code::kInvalidArgument, "items",
                  "element " + std::to_string(i) + " is " + spec_of(elements[i]).to_string() +
                      ", and not " + spec->to_string());
    }
  }
  return make_node({
      .title = "items(" + std::to_string(elements.size()) +
               (spec == nullptr ? ")" : ", " + spec->to_string() + ")"),
      .build = [elements = std::move(elements), spec](std::vector<Built>, Builder&) -> Built {
        return {std::make_shared<Items>(elements, spec)};
      },
  });
}

}  // namespace penstock
