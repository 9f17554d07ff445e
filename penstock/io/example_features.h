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

// A feature that is wanted of a tf.Example, and as what. A value.
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
  std::optional<DType> dtype = {};            // of what comes out; nullopt: the type's own
  std::optional<Default> default_value = {};  // for records that lack it; nullopt: they fail
  // kFixed: how the `count` values lie in an array; nullopt: one number is {}, others are {count}.
  std::optional<Shape> shape = {};

  // kUint8, kFloat32, kInt64; or kInt32 of kInt64, where a value that does not fit is a failure.
  DType output() const;
};

// Error kInvalidArgument: no or too many features, a name that comes twice, a form or dtype that
// the type cannot have, a shape or default of another size.
void check(std::span<const ExampleFeature> features, const char* operation);

// One feature of one record. Of kFixed the caller says where it is to be written; of the others the
// parser says where it lies: in the record, in the memory that it asked for, or in its own default.
struct ExampleValue {
  std::byte* row = nullptr;  // kFixed: count * size_of(output()) bytes, of any alignment; not null
  const std::byte* data = nullptr;   // the others; of any alignment, never null
  uint64_t count = 0;                // values of `data`: bytes, if the type is kBytes
  std::span<const int64_t> lengths;  // kStrings: of the strings that lie in `data`
};

// Where a parser puts what cannot stay where it lies in the record.
class ExampleMemory {
 public:
  virtual ~ExampleMemory() = default;
  // Aligned to 8 bytes, and left alone until the record's values were used. May throw.
  virtual std::byte* take(size_t bytes) = 0;
};

enum class ExampleFault : uint8_t {
  kNone = 0,
  kCut,      // something goes on beyond the end of what it is in
  kVarint,   // a number of more than ten bytes
  kTag,      // field number 0 or beyond 2^29 - 1, or a wire type that does not exist
  kGroup,    // a group that is not ended, was not begun, or lies too deep
  kFloats,   // packed floats of a length that is not a multiple of 4
  kMissing,  // the feature is not there and has no default
  kType,     // it is of another type
  kCount,    // it has another number of values, or of byte strings
  kLength,   // the byte string is of another length
  kRange,    // a value that dtype cannot hold
};

// What is wrong with a record.
struct ExampleFailure {
  static constexpr uint32_t kNoFeature = UINT32_MAX;
  static constexpr uint64_t kNoStep = UINT64_MAX;

  ExampleFault fault = ExampleFault::kNone;
  uint32_t feature = kNoFeature;  // its number; kNoFeature: nothing that is wanted
  uint64_t step = kNoStep;        // of a feature list
  uint64_t byte = 0;              // of the record: where it is, or what it is in begins
  uint64_t found = 0;             // kType: the Type; kCount, kLength: how many; kRange: the value
};

// "feature 'x': 3 values where 64 are wanted, at byte 17"
std::string to_string(const ExampleFailure& failure, std::span<const ExampleFeature> features);

}  // namespace penstock
