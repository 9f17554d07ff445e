#pragma once

#include <string>
#include <vector>

#include "penstock/io/example_features.h"
#include "penstock/pipeline/stages/op.h"

// Operations for Dataset::map. Immutable: any thread. Each throws Error kInvalidArgument for
// invalid arguments; building the chain throws the same if the known elements do not fit the
// operation.
namespace penstock {

// (x - mean) / std, computed in float32, as float32. Bit-identical on every machine. `mean`, `std`:
// one number each, or one per channel (the last axis). `fields`: empty: all arrays of uint8,
// float32 or float64. Errors: no numbers; different counts of numbers in the two; a std that is 0
// or not finite.
OpRef normalize(std::vector<float> mean, std::vector<float> std,
                std::vector<std::string> fields = {});

// Converts fields to another dtype. Integer to integer keeps the lowest bits, as in C. Float to
// integer truncates, saturates at the integer's range, and makes NaN 0. To bool, all values but 0
// are true. Bit-identical on every machine. `fields`: empty: all arrays of numbers. Errors: dtype
// is complex; when building, a field of complex numbers or strings.
OpRef cast(DType dtype, std::vector<std::string> fields = {});

// Reinterprets bytes as an array of this dtype and shape, in C order. For bool every byte but 0 is
// true. `field`: a byte string, or an array of uint8 with one axis. A string of another length
// fails. `reversed`: the values have the opposite byte order to the machine's. Errors: a negative
// length in `shape`, or a size that overflows.
OpRef decode_raw(std::string field, DType dtype, Shape shape, bool reversed = false);

// The named fields as a tuple, in this order; one name: the field itself. Nothing is copied.
// Errors: no names; when building, a field that does not exist.
OpRef select(std::vector<std::string> fields);

// Parses features of tf.Examples. An element is one byte string, as Dataset::tfrecord makes them,
// or has a byte string among other leaves, which pass through unchanged. The result has a leaf per
// feature, of the feature's name. If the byte string is in a dict or tuple, these names have the
// byte string's name and '/' as a prefix. The leaves of a feature:
//
//   kFixed    an array of the feature's shape; bytes become uint8
//   kRagged   a ragged array of one axis
//   kString   bytes
//   kStrings  the concatenated strings as bytes, and their lengths as `name/lengths`,
//             ragged int64
//
// A record that is not a tf.Example, or whose features are not as declared, fails with kDataLoss,
// which names the feature and the byte. `field`: the leaf to parse; empty: the only byte string.
// Errors: check()'s of features, or two leaves of one name.
OpRef parse_example(std::vector<ExampleFeature> features, std::string field = {});

// The same for tf.SequenceExamples. Features of the context have the leaves of parse_example. The
// leaves of a feature list depend on its steps:
//
//   kFixed   a ragged array of shape {steps, the step's shape}
//   kRagged  the concatenated values of all steps, ragged, and their counts per step as
//            `name/lengths`, ragged int64
//   kString  the concatenated bytes of all steps, as bytes, and `name/lengths`
//
// A record that is not a tf.SequenceExample, or whose features are not as declared, fails with
// kDataLoss, which names the feature, the step and the byte. Errors: SequenceExampleParser's, or
// two leaves of one name.
OpRef parse_sequence_example(std::vector<ExampleFeature> context, std::vector<ExampleFeature> lists,
                             std::string field = {});

}  // namespace penstock
