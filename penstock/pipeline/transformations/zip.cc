#include "penstock/pipeline/transformations/zip.h"

#include <algorithm>
#include <set>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/inputs.h"
#include "penstock/pipeline/nest.h"

namespace penstock {
namespace {

class Zip : public Indexed {
 public:
  Zip(std::vector<IndexedRef> inputs, std::vector<std::string> names)
      : inputs_(std::move(inputs)), names_(std::move(names)) {
    std::vector<SpecRef> specs;
    for (const IndexedRef& input : inputs_) specs.push_back(input->spec());
    if (std::find(specs.begin(), specs.end(), nullptr) == specs.end()) {
      spec_ = side_by_side(specs, names_);
    }
  }

  uint64_t length(uint64_t base) const override {
    uint64_t least = kEndless;
    for (const IndexedRef& input : inputs_) least = std::min(least, input->length(base));
    return least;
  }
  SpecRef spec() const override { return spec_; }
  bool costly() const override { return any_costly(inputs_); }
  std::unique_ptr<IndexedReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public IndexedReader {
   public:
    Reader(const Zip& stage, Context& context) : stage_(stage) {
      for (const IndexedRef& input : stage.inputs_) {
        readers_.push_back(input->reader(context));
        rows_.push_back(std::make_unique<InputRows>(context.scratch));
      }
    }

    void fetch(const At& at, std::span<const uint64_t> positions, Chunk& out,
               uint32_t row) override {
      bool made = true;
      size_t first = 0;  // of leaves; nothing is bound where their number is not known
      for (size_t i = 0; i < readers_.size(); ++i) {
        SpecRef spec = stage_.inputs_[i]->spec();
        rows_[i]->fetch(*readers_[i], spec, at, positions, out, row, first);
        if (stage_.spec_ != nullptr) first += spec->leaves().size();
        made &= rows_[i]->spec() != nullptr;
      }
      if (!made) return;  // not one element is whole
      if (stage_.spec_ == nullptr && !settle(out)) {
        throw Error(Code::kInternal, "zip", "elements of two specs in one chunk");
      }
      first = 0;
      for (const auto& rows : rows_) {
        rows->hand_on(out, first);
        first += rows->spec()->leaves().size();
      }
    }

   private:
    bool settle(Chunk& out) {
      bool changed = told_.size() != rows_.size();
      told_.resize(rows_.size());
      for (size_t i = 0; i < rows_.size(); ++i) {
        changed |= std::exchange(told_[i], rows_[i]->spec()) != rows_[i]->spec();
      }
      if (changed) spec_ = side_by_side(told_, stage_.names_);
      return out.settle(spec_);
    }

    const Zip& stage_;
    std::vector<std::unique_ptr<IndexedReader>> readers_;
    std::vector<std::unique_ptr<InputRows>> rows_;
    std::vector<SpecRef> told_;  // by the inputs' elements, and what they make up
    SpecRef spec_;
  };

  std::vector<IndexedRef> inputs_;
  std::vector<std::string> names_;
  SpecRef spec_;
};

}  // namespace

IndexedRef zipped(std::vector<IndexedRef> inputs, std::vector<std::string> names) {
  return std::make_shared<Zip>(std::move(inputs), std::move(names));
}

ZipNode::ZipNode(std::vector<Ref> inputs, std::vector<std::string> names)
    : Node(std::move(inputs)), names_(std::move(names)) {
  const size_t count = this->inputs().size();
  if (count == 0) throw Error(Code::kInvalidArgument, "zip", "there are no inputs");
  if (names_.empty()) return;
  if (names_.size() != count) {
    throw Error(Code::kInvalidArgument, "zip",
                std::to_string(names_.size()) + " names for " + std::to_string(count) + " inputs");
  }
  if (std::set<std::string>(names_.begin(), names_.end()).size() != count) {
    throw Error(Code::kInvalidArgument, "zip", "a name comes twice");
  }
}

std::string ZipNode::title() const {
  if (names_.empty()) return "zip(" + std::to_string(inputs().size()) + ")";
  std::string text;
  for (const std::string& name : names_) text += (text.empty() ? "zip(" : ", ") + name;
  return text + ")";
}

Built ZipNode::build(std::vector<Built> inputs, Builder&) const {
  return {zipped(indexed_of(inputs), names_)};
}

}  // namespace penstock
