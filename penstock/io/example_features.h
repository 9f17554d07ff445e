#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/memory/dtype.h"
#include "penstock/memory/tensor.h"

namespace penstock {

// A feature to parse from a tf.Example, and its output type. A value.
struct ExampleFeature {
  enum class Type : uint8_t { kBytes = 1, kFloat32 = 2, kInt64 = 3 };  // fields of Feature
  enum class Form : uint8_t {
    kFixed = 0,    // `count` values in every record; kBytes: one string of `count` bytes
    kRagged = 1,   // any number of values; not kBytes
    kString = 2,   // one byte string of any length; kBytes only
    kStrings = 3,  // any number of byte strings; kBytes only
  };
  struct Default {
    std::vector<std::byte> values;  // of dtype
    std::vector<int64_t> lengths;   // kStrings: of each string in `values`
  };

  std::string name = {};
  Type type = Type::kBytes;
  Form form = Form::kString;
  uint64_t count = 1;                         // kFixed
  std::optional<DType> dtype = {};            // of the output; nullopt: the type's own
  std::optional<Default> default_value = {};  // for records without it; nullopt: an error
  // kFixed: the shape of the `count` values; nullopt: {} for one number, else {count}.
  std::optional<Shape> shape = {};

  // kUint8, kFloat32 or kInt64; or kInt32 for kInt64, where a value out of range is a failure.
  DType output() const;
};

// Error kInvalidArgument: no or too many features, a repeated name, a form or dtype that the type
// does not support, a shape or default of the wrong size.
void check(std::span<const ExampleFeature> features, const char* operation);

// One feature of one record. For kFixed the caller sets `row`, where the parser writes the values.
// For the other forms the parser sets `data`, which lies in the record, in memory that the parser
// allocated, or in the default.
struct ExampleValue {
  std::byte* row = nullptr;  // kFixed: count * size_of(output()) bytes, of any alignment; not null
  const std::byte* data = nullptr;   // other forms; of any alignment, not null
  uint64_t count = 0;                // values of `data`: bytes, if the type is kBytes
  std::span<const int64_t> lengths;  // kStrings: of the strings that lie in `data`
};

// Allocates memory for values that a parser cannot leave in the record.
class ExampleMemory {
 public:
  virtual ~ExampleMemory() = default;
  // Aligned to 8 bytes; valid until the record's values were used. May throw.
  virtual std::byte* take(size_t bytes) = 0;
};

enum class ExampleFault : uint8_t {
  kNone = 0,
  kCut,      // a field extends beyond the end of its message
  kVarint,   // a number of more than ten bytes
  kTag,      // field number 0 or beyond 2^29 - 1, or a wire type that does not exist
  kGroup,    // an unterminated, unopened or too deeply nested group
  kFloats,   // packed floats of a length that is not a multiple of 4
  kMissing,  // the feature is missing and has no default
  kType,     // the feature has another type
  kCount,    // the feature has another number of values, or of byte strings
  kLength,   // the byte string is of another length
  kRange,    // a value that dtype cannot hold
};

// Why a record could not be parsed.
struct ExampleFailure {
  static constexpr uint32_t kNoFeature = UINT32_MAX;
  static constexpr uint64_t kNoStep = UINT64_MAX;

  ExampleFault fault = ExampleFault::kNone;
  uint32_t feature = kNoFeature;  // its number; kNoFeature: outside the wanted features
  uint64_t step = kNoStep;        // of a feature list
  uint64_t byte = 0;   // of the record: the position, or the begin of the message around it
  uint64_t found = 0;  // kType: the Type; kCount, kLength: how many; kRange: the value
};

// "feature 'x': 3 values, expected 64, at byte 17"
std::string to_string(const ExampleFailure& failure, std::span<const ExampleFeature> features);

}  // namespace penstock
