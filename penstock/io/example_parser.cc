#include "penstock/io/example_parser.h"

#include <utility>

namespace penstock {

using namespace wire;

namespace {

const std::vector<ExampleFeature>& checked(const std::vector<ExampleFeature>& features) {
  check(features, "parse_example");
  return features;
}

std::vector<std::string> names_of(const std::vector<ExampleFeature>& features) {
  std::vector<std::string> names;
  for (const ExampleFeature& feature : features) names.push_back(feature.name);
  return names;
}

void use_default(const ExampleFeature& feature, ExampleValue& value) {
  const auto& [values, lengths] = *feature.default_value;
  if (feature.form == ExampleFeature::Form::kFixed) {
    if (!values.empty()) std::memcpy(value.row, values.data(), values.size());
    return;
  }
  value.data = values.empty() ? no_values : values.data();
  value.count = values.size() / size_of(feature.output());
  value.lengths = lengths;
}

}  // namespace

ExampleParser::ExampleParser(std::vector<ExampleFeature> features)
    : features_(std::move(features)), entries_(names_of(checked(features_)), true) {
  for (const ExampleFeature& feature : features_) decoders_.emplace_back(feature);
}

bool ExampleParser::parse(std::span<const std::byte> record, std::span<ExampleValue> values,
                          ExampleMemory& memory) {
  const auto* begin = reinterpret_cast<Bytes>(record.data());
  ExampleTrouble trouble;
  entries_.clear();
  ExampleFault fault = find({begin, begin + record.size()}, trouble.at);
  uint32_t feature = ExampleFailure::kNoFeature;
  if (fault == ExampleFault::kNone) [[likely]] {
    for (feature = 0; feature < decoders_.size(); ++feature) {
      fault = decoders_[feature].decode(entries_[feature], values[feature], memory, trouble);
      if (fault == ExampleFault::kNone) [[likely]]
        continue;
      if (fault != ExampleFault::kMissing || !features_[feature].default_value) break;
      use_default(features_[feature], values[feature]);
    }
    if (feature == decoders_.size()) return true;
  }
  failure_ = {.fault = fault,
              .feature = feature,
              .byte = trouble.at == nullptr ? 0 : static_cast<uint64_t>(trouble.at - begin),
              .found = trouble.found};
  return false;
}

// The entries of all Features of an Example: in one part usually, of which there is nothing else.
ExampleFault ExampleParser::find(Span record, Bytes& at) {
  if (Bytes features = only(1, record.begin, record.end); features != nullptr) [[likely]] {
    return entries_.find({features, record.end}, at);
  }
  Fields fields(record);
  while (fields.next()) {
    if (!fields.is(1, kBytes)) continue;
    ExampleFault fault = entries_.find(fields.body(), at);
    if (fault != ExampleFault::kNone) return fault;
  }
  at = fields.begin();
  return fields.fault();
}

}  // namespace penstock
