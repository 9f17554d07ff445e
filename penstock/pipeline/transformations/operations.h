#pragma once

#include <string>
#include <vector>

#include "penstock/io/example_features.h"
#include "penstock/pipeline/stages/op.h"

// Operations for Dataset::map. Immutable: any thread. Their errors are kInvalidArgument, for
// arguments that cannot be; and when the chain is built, for elements that they cannot be applied
// to, as far as these are known then.
namespace penstock {

// (x - mean) / std, computed in float32 and given as float32: a pixel's value less the channel's
// mean, in tasks of its standard deviation. The same bits on every machine. `mean`, `std`: one
// number each, or one for each place of the last axis (channel). `fields`: empty: all arrays of
// uint8, float32 or float64. Errors: no numbers, numbers of both that differ in count, a std that
// is 0 or not finite.
OpRef normalize(std::vector<float> mean, std::vector<float> std,
                std::vector<std::string> fields = {});

// Fields with another dtype. Between integers the lowest bits count, as in C; a fraction is cut
// off; a floating-point number beyond an integer's range becomes the nearest that there is, and NaN
// 0; everything but 0 is true. The same bits on every machine. `fields`: empty: all arrays of
// numbers. Complex numbers, and strings, are an error. Error: dtype is complex.
OpRef cast(DType dtype, std::vector<std::string> fields = {});

// Bytes that are an array's values, in C order, become that array. Of bools every byte but 0 is
// true. `field`: a byte string, or an array of uint8 with one axis. A string of another length
// fails. `reversed`: the values stand in the byte order that is not the machine's. Errors: a length
// below 0, a size that overflows.
OpRef decode_raw(std::string field, DType dtype, Shape shape, bool reversed = false);

// Takes features out of tf.Examples: elements that are one byte string, as Dataset::tfrecord gives
// them, or a byte string among other leaves, which are passed on untouched. The result has a leaf
// for each feature, under its name; of a byte string in a dict or tuple the leaves have its name
// and a '/' in front:
//
//   kFixed    an array of its shape; of bytes: uint8
//   kRagged   ragged, of one axis
//   kString   bytes
//   kStrings  the strings, one after the other, as bytes, and their lengths as `name/lengths`,
//             ragged int64
//
// A record that is no tf.Example, or whose features are not as declared, is lost: Error kDataLoss,
// which names the feature and the byte. `field`: the leaf that is parsed; empty: the only byte
// string. Errors: check()'s of features, or two leaves of one name.
OpRef parse_example(std::vector<ExampleFeature> features, std::string field = {});

// The same of tf.SequenceExamples. The result has the leaves of parse_example for each feature of
// the context, and for each list, by what its steps are:
//
//   kFixed   ragged: an array of {steps, the step's shape}
//   kRagged  all steps' values, one after the other, ragged; and how many each has as
//            `name/lengths`, ragged int64
//   kString  all steps' bytes, one after the other, as bytes; and `name/lengths`
//
// A record that is no tf.SequenceExample, or whose features are not as declared, is lost: Error
// kDataLoss, which names the feature, the step and the byte. Errors: SequenceExampleParser's, or
// two leaves of one name.
OpRef parse_sequence_example(std::vector<ExampleFeature> context, std::vector<ExampleFeature> lists,
                             std::string field = {});

}  // namespace penstock
