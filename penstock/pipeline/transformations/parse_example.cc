#include "penstock/pipeline/transformations/parse_example.h"

#include <utility>

#include "penstock/base/error.h"
#include "penstock/io/example_parser.h"
#include "penstock/pipeline/transformations/example_columns.h"

namespace penstock {
namespace {

class ParseExampleRun : public OpRun {
 public:
  ParseExampleRun(const std::vector<ExampleFeature>& features, Scratch& scratch)
      : parser_(features), columns_(features, scratch) {}

  void run(const Keys& keys, const Chunk& in, Chunk& out, uint32_t row) override {
    columns_.begin(out, row);
    const uint32_t end = row + keys.size();
    for (; row < end; ++row) {
      const std::span<ExampleValue> values = columns_.next();
      if ((in.alive() >> row & 1) == 0) continue;
      const std::span record{in.at(0, row), static_cast<size_t>(in.shape(0, row)[0])};
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
  ExampleParser parser_;
  ExampleColumns columns_;
};

}  // namespace

ParseExampleOp::ParseExampleOp(std::vector<ExampleFeature> features, std::string nest)
    : features_(std::move(features)) {
  check(features_, "parse_example");
  std::vector<Leaf> leaves;
  for (const ExampleFeature& feature : features_) {
    for (Leaf& leaf : leaves_of(feature)) leaves.push_back(std::move(leaf));
  }
  spec_ = std::make_shared<ElementSpec>(std::move(leaves), std::move(nest));
}

SpecRef ParseExampleOp::result(const ElementSpec& in) const {
  check_records(in, "parse_example");
  return spec_;
}

std::unique_ptr<OpRun> ParseExampleOp::bind(SpecRef, Context& context) const {
  return std::make_unique<ParseExampleRun>(features_, context.scratch);
}

OpRef parse_example(std::vector<ExampleFeature> features) {
  return std::make_shared<ParseExampleOp>(std::move(features));
}

}  // namespace penstock
