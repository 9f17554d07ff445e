#pragma once

#include <memory>
#include <string>
#include <vector>

#include "penstock/io/example_features.h"
#include "penstock/pipeline/stages/op.h"
#include "penstock/pipeline/transformations/record_field.h"

namespace penstock {

// Takes features out of tf.Examples: elements that are one byte string, as Dataset::tfrecord gives
// them, or a byte string among other leaves, which are passed on untouched. What comes out has a
// leaf for each feature, under its name (behind that of the byte string, see RecordField):
//
//   kFixed    an array of its shape; of bytes: uint8
//   kRagged   ragged, of one axis
//   kString   bytes
//   kStrings  the strings, one after the other, as bytes, and their lengths as `name/lengths`,
//             ragged int64
//
// A record that is no tf.Example, or whose features are not as declared, is lost: Error kDataLoss,
// which names the feature and the byte. Immutable: any thread.
class ParseExampleOp : public Op {
 public:
  // `field`: the leaf that is parsed; empty: the only byte string. Error kInvalidArgument as
  // check()'s, or two leaves of one name.
  explicit ParseExampleOp(std::vector<ExampleFeature> features, std::string field = {});

  std::string title() const override { return field_.title(); }
  // Error kInvalidArgument as of RecordField.
  SpecRef result(const ElementSpec& in) const override;
  std::vector<std::optional<size_t>> passes(const ElementSpec& in) const override;
  std::unique_ptr<OpRun> bind(SpecRef in, Context& context) const override;

 private:
  std::vector<ExampleFeature> features_;
  RecordField field_;
  SpecRef parsed_;
};

// For Dataset::map.
OpRef parse_example(std::vector<ExampleFeature> features, std::string field = {});

}  // namespace penstock
