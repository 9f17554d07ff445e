#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/pipeline/element/element.h"
#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/transformations/operations.h"

namespace penstock {
namespace {

class SelectOp : public Op {
 public:
  explicit SelectOp(std::vector<std::string> fields) : fields_(std::move(fields)) {
    if (fields_.empty()) throw Error(Code::kInvalidArgument, "select", "no fields are named");
    for (const std::string& field : fields_) (void)utf8_name(field, "select");
  }

  std::string title() const override {
    std::string text = "select(";
    for (const std::string& field : fields_) text += (text.back() == '(' ? "" : ", ") + field;
    return text + ")";
  }
  SpecRef result(const ElementSpec& in) const override {
    std::vector<SpecRef> parts;
    for (size_t place : places_in(in)) {
      Leaf leaf = in.leaves()[place];
      leaf.name.clear();
      parts.push_back(std::make_shared<ElementSpec>(std::vector<Leaf>{std::move(leaf)}, "."));
    }
    return parts.size() == 1 ? parts[0] : combined_spec(parts, {});
  }
  std::vector<std::optional<size_t>> passes(const ElementSpec& in) const override {
    const std::vector<size_t> places = places_in(in);
    return {places.begin(), places.end()};
  }
  std::unique_ptr<OpRun> bind(SpecRef, Context&) const override { return std::make_unique<Run>(); }

 private:
  // All leaves are passed on.
  class Run : public OpRun {
   public:
    void run(const Keys&, const Chunk&, Chunk&, uint32_t) override {}
  };

  std::vector<size_t> places_in(const ElementSpec& in) const {
    std::vector<size_t> places;
    for (const std::string& field : fields_) {
      const auto place = in.find(field);
      if (!place) {
        throw Error(Code::kInvalidArgument, "select",
                    "there is no field '" + field + "' in " + in.to_string());
      }
      places.push_back(*place);
    }
    return places;
  }

  std::vector<std::string> fields_;
};

}  // namespace

OpRef select(std::vector<std::string> fields) {
  return std::make_shared<SelectOp>(std::move(fields));
}

}  // namespace penstock
