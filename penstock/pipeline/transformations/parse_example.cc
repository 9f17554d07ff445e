#include <utility>

#include "penstock/base/error.h"
#include "penstock/io/example_parser.h"
#include "penstock/pipeline/transformations/example_columns.h"
#include "penstock/pipeline/transformations/operations.h"

namespace penstock {
namespace {

class ParseExampleRun : public OpRun {
 public:
  ParseExampleRun(const std::vector<ExampleFeature>& features, size_t leaf, Scratch& scratch)
      : leaf_(leaf), parser_(features), columns_(features, static_cast<uint32_t>(leaf), scratch) {}

  void run(const Keys& keys, const Chunk& in, Chunk& out, uint32_t row) override {
    columns_.begin(out, row);
    const uint32_t end = row + keys.size();
    for (; row < end; ++row) {
      const std::span<ExampleValue> values = columns_.next();
      if ((in.alive() >> row & 1) == 0) continue;
      const std::span record{in.at(leaf_, row), static_cast<size_t>(in.shape(leaf_, row)[0])};
      if (!parser_.parse(record, values, columns_)) [[unlikely]] {
        out.fail(row, {"", 0,
                       std::make_exception_ptr(
                           Error(Code::kDataLoss, "parse_example", parser_.failure_text()))});
        continue;
      }
      columns_.give(out, row);
    }
  }

 private:
  const size_t leaf_;  // the record's leaf; in the result that of the first feature
  ExampleParser parser_;
  ExampleColumns columns_;
};

class ParseExampleOp : public Op {
 public:
  ParseExampleOp(std::vector<ExampleFeature> features, std::string field)
      : features_(std::move(features)), field_("parse_example", std::move(field)) {
    check(features_, "parse_example");
    std::vector<Leaf> leaves;
    for (const ExampleFeature& feature : features_) {
      for (Leaf& leaf : leaves_of(feature)) leaves.push_back(std::move(leaf));
    }
    parsed_ = std::make_shared<ElementSpec>(std::move(leaves));
  }

  std::string title() const override { return field_.title(); }
  SpecRef result(const ElementSpec& in) const override { return field_.result(in, parsed_); }
  std::vector<std::optional<size_t>> passes(const ElementSpec& in) const override {
    return field_.passes(in, parsed_->leaves().size());
  }
  std::unique_ptr<OpRun> bind(SpecRef in, Context& context) const override {
    return std::make_unique<ParseExampleRun>(features_, field_.leaf(*in), context.scratch);
  }

 private:
  std::vector<ExampleFeature> features_;
  RecordField field_;
  SpecRef parsed_;
};

}  // namespace

OpRef parse_example(std::vector<ExampleFeature> features, std::string field) {
  return std::make_shared<ParseExampleOp>(std::move(features), std::move(field));
}

}  // namespace penstock
