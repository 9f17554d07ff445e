#include "penstock/io/example_features.h"

#include <limits>
#include <set>
#include <string_view>

#include "penstock/base/error.h"

namespace penstock {
namespace {

using Type = ExampleFeature::Type;
using Form = ExampleFeature::Form;

constexpr size_t kMaxFeatures = 1 << 16;
constexpr uint64_t kMaxMessageBytes = std::numeric_limits<int32_t>::max();  // protobuf's own limit

const char* name_of(Type type) {
  switch (type) {
    case Type::kBytes:
      return "bytes";
    case Type::kFloat32:
      return "float32";
    case Type::kInt64:
      return "int64";
  }
  return "nothing";
}

std::string quoted(const ExampleFeature& feature) { return "feature '" + feature.name + "'"; }

bool is_shape_of(std::span<const int64_t> shape, uint64_t count) {
  uint64_t values = 1;
  for (int64_t length : shape) {
    if (length < 0 || __builtin_mul_overflow(values, static_cast<uint64_t>(length), &values)) {
      return false;
    }
  }
  return values == count;
}

// True if an array of this shape has `count` values.
bool has(const Shape& shape, uint64_t count) {
  uint64_t values = 1;
  for (int64_t length : shape) {
    if (length < 0) return false;
    if (length != 0 && values > kMaxMessageBytes / static_cast<uint64_t>(length)) return false;
    values *= static_cast<uint64_t>(length);
  }
  return values == count;
}

// Why the feature is invalid; "" if it is valid.
std::string wrong(const ExampleFeature& feature) {
  const bool bytes = feature.type == Type::kBytes;
  if (feature.type < Type::kBytes || feature.type > Type::kInt64) return "unknown type";
  if (feature.form > Form::kStrings) return "unknown form";
  if (bytes && feature.form == Form::kRagged)
    return "bytes must be one string or a list of strings";
  if (!bytes && feature.form >= Form::kString) return "only bytes can be strings";
  if (!is_valid(feature.output())) return "unknown dtype";
  const DType own = ExampleFeature{.type = feature.type}.output();
  const bool narrow = feature.type == Type::kInt64 && feature.output() == DType::kInt32;
  if (feature.output() != own && !narrow) {
    return std::string(name_of(feature.type)) + " cannot become " +
           std::string(penstock::name_of(feature.output()));
  }
  const uint64_t size = size_of(feature.output());
  if (feature.form == Form::kFixed && feature.count > kMaxMessageBytes / size) {
    return std::to_string(feature.count) + " values are more than a message can have";
  }
  if (feature.shape &&
      (feature.form != Form::kFixed || !is_shape_of(*feature.shape, feature.count))) {
    return "its shape does not have " + std::to_string(feature.count) + " values";
  }
  if (feature.shape) {
    if (feature.form != Form::kFixed) return "only a fixed number of values can have a shape";
    if (!has(*feature.shape, feature.count)) {
      return "a shape of " + to_string(*feature.shape) + " does not have " +
             std::to_string(feature.count) + " values";
    }
  }
  if (!feature.default_value) return "";
  const auto& [values, lengths] = *feature.default_value;
  if (feature.form == Form::kFixed && values.size() != feature.count * size) {
    return "its default has " + std::to_string(values.size()) + " bytes, expected " +
           std::to_string(feature.count * size);
  }
  if (values.size() % size != 0) return "its default is not a whole number of values";
  if (feature.form != Form::kStrings)
    return lengths.empty() ? "" : "its default must not have lengths";
  uint64_t sum = 0;
  for (int64_t length : lengths) {
    if (length < 0 || static_cast<uint64_t>(length) > values.size() - sum) {
      return "the lengths of its default do not add up to its bytes";
    }
    sum += static_cast<uint64_t>(length);
  }
  return sum == values.size() ? "" : "the lengths of its default do not add up to its bytes";
}

std::string what(const ExampleFailure& failure, const ExampleFeature* feature) {
  switch (failure.fault) {
    case ExampleFault::kNone:
      return "no fault";
    case ExampleFault::kCut:
      return "a field extends beyond the end of the message";
    case ExampleFault::kVarint:
      return "a number of more than ten bytes";
    case ExampleFault::kTag:
      return "bytes that are no field tag";
    case ExampleFault::kGroup:
      return "an unterminated, unopened or too deeply nested group";
    case ExampleFault::kFloats:
      return "packed floats whose length is no multiple of 4";
    case ExampleFault::kMissing:
      if (failure.step != ExampleFailure::kNoStep) return "has no values";
      return "is missing and has no default";
    case ExampleFault::kType:
      return std::string(name_of(static_cast<Type>(failure.found))) + ", expected " +
             name_of(feature->type);
    case ExampleFault::kCount:
      if (feature->type == Type::kBytes) {
        return std::to_string(failure.found) + " byte strings, expected one";
      }
      return std::to_string(failure.found) + " values, expected " + std::to_string(feature->count);
    case ExampleFault::kLength:
      return std::to_string(failure.found) + " bytes, expected " + std::to_string(feature->count);
    case ExampleFault::kRange:
      return std::to_string(static_cast<int64_t>(failure.found)) + " does not fit into " +
             std::string(name_of(feature->output()));
  }
  return "an unknown fault";
}

}  // namespace

DType ExampleFeature::output() const {
  if (dtype) return *dtype;
  return type == Type::kInt64     ? DType::kInt64
         : type == Type::kFloat32 ? DType::kFloat32
                                  : DType::kUint8;
}

void check(std::span<const ExampleFeature> features, const char* operation) {
  if (features.empty() || features.size() > kMaxFeatures) {
    throw Error(Code::kInvalidArgument, operation,
                "takes 1 to " + std::to_string(kMaxFeatures) + " features, got " +
                    std::to_string(features.size()));
  }
  std::set<std::string_view> names;
  for (const ExampleFeature& feature : features) {
    std::string text = wrong(feature);
    if (!names.insert(feature.name).second) text = "the name is given twice";
    if (!text.empty()) {
      throw Error(Code::kInvalidArgument, operation, quoted(feature) + ": " + text);
    }
  }
}

std::string to_string(const ExampleFailure& failure, std::span<const ExampleFeature> features) {
  const ExampleFeature* feature =
      failure.feature < features.size() ? &features[failure.feature] : nullptr;
  const bool in_step = failure.step != ExampleFailure::kNoStep;
  std::string text = what(failure, feature);
  if (feature != nullptr) {
    text =
        quoted(*feature) + (in_step ? ", step " + std::to_string(failure.step) : "") + ": " + text;
  }
  const bool nowhere = failure.fault == ExampleFault::kMissing && !in_step;
  if (failure.fault != ExampleFault::kNone && !nowhere) {
    text += ", at byte " + std::to_string(failure.byte);
  }
  return text;
}

}  // namespace penstock
