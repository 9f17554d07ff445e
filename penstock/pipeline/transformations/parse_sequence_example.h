#pragma once

#include <memory>
#include <string>
#include <vector>

#include "penstock/io/example_features.h"
#include "penstock/pipeline/stages/op.h"
#include "penstock/pipeline/transformations/record_field.h"

namespace penstock {

// Takes features out of tf.SequenceExamples: elements that are one byte string, as
// Dataset::tfrecord gives them, or a byte string among other leaves, as ParseExampleOp. What comes
// out has the leaves of ParseExampleOp for each feature of
// the context, and for each list, by what its steps are:
//
//   kFixed   ragged: an array of {steps, the step's shape}
//   kRagged  all steps' values, one after the other, ragged; and how many each has as
//            `name/lengths`, ragged int64
//   kString  all steps' bytes, one after the other, as bytes; and `name/lengths`
//
// A record that is no tf.SequenceExample, or whose features are not as declared, is lost: Error
// kDataLoss, which names the feature, the step and the byte. Immutable: any thread.
class ParseSequenceExampleOp : public Op {
 public:
  // `field`: the leaf that is parsed; empty: the only byte string. Error kInvalidArgument as
  // SequenceExampleParser's, or two leaves of one name.
  ParseSequenceExampleOp(std::vector<ExampleFeature> context, std::vector<ExampleFeature> lists,
                         std::string field = {});

  std::string title() const override { return field_.title(); }
  // Error kInvalidArgument as of RecordField.
  SpecRef result(const ElementSpec& in) const override;
  std::vector<std::optional<size_t>> passes(const ElementSpec& in) const override;
  std::unique_ptr<OpRun> bind(SpecRef in, Context& context) const override;

 private:
  std::vector<ExampleFeature> context_, lists_;
  RecordField field_;
  SpecRef parsed_;
};

// For Dataset::map.
OpRef parse_sequence_example(std::vector<ExampleFeature> context, std::vector<ExampleFeature> lists,
                             std::string field = {});

}  // namespace penstock
