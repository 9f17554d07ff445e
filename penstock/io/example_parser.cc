#include "penstock/io/example_parser.h"

#include <utility>

#include "penstock/base/error.h"

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
  const auto* begin = reinterpret_cast<Pointer>(record.data());
  ExampleErrorPlace place;
  entries_.clear();
  ExampleFault fault = find({begin, begin + record.size()}, place.at);
  uint32_t feature = ExampleFailure::kNoFeature;
  if (fault == ExampleFault::kNone) [[likely]] {
    for (feature = 0; feature < decoders_.size(); ++feature) {
      fault = decoders_[feature].decode(entries_[feature], values[feature], memory, place);
      if (fault == ExampleFault::kNone) [[likely]]
        continue;
      if (fault != ExampleFault::kMissing || !features_[feature].default_value) break;
      use_default(features_[feature], values[feature]);
    }
    if (feature == decoders_.size()) return true;
  }
  failure_ = {.fault = fault,
              .feature = feature,
              .byte = place.at == nullptr ? 0 : static_cast<uint64_t>(place.at - begin),
              .found = place.found};
  return false;
}

// Finds the entries of all Features of an Example, which usually is one part and nothing else.
ExampleFault ExampleParser::find(Span record, Pointer& at) {
  if (Pointer features = only(1, record.begin, record.end); features != nullptr) [[likely]] {
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

namespace {

using Form = ExampleFeature::Form;
using Features = std::vector<ExampleFeature>;

void check_lists(Features lists) {
  const char* const operation = "parse_sequence_example";
  for (ExampleFeature& list : lists) {
    const auto refuse = [&](const char* why) {
      throw Error(Code::kInvalidArgument, operation, "feature list '" + list.name + "': " + why);
    };
    if (list.form == Form::kStrings) refuse("a step must be one byte string, not several");
    if (!list.default_value) continue;
    const auto& [values, lengths] = *list.default_value;
    if (!values.empty() || !lengths.empty()) refuse("its default must be an empty list");
    list.default_value.reset();
  }
  check(lists, operation);
}

Features all_of(Features context, Features lists) {
  if (!lists.empty() || context.empty()) check_lists(lists);
  context.insert(context.end(), std::make_move_iterator(lists.begin()),
                 std::make_move_iterator(lists.end()));
  return context;
}

std::vector<std::string> names_of(std::span<const ExampleFeature> features) {
  std::vector<std::string> names;
  for (const ExampleFeature& feature : features) names.push_back(feature.name);
  return names;
}

// Calls take(step) for each step in an entry of FeatureLists.
template <class Take>
ExampleFault each_step(Span entry, ExampleErrorPlace& place, const Take& take) {
  Fields parts(entry);
  while (parts.next()) {
    if (!parts.is(2, kBytes)) continue;
    Fields steps(parts.body());
    while (steps.next()) {
      if (!steps.is(1, kBytes)) continue;
      if (ExampleFault fault = take(steps.body()); fault != ExampleFault::kNone) return fault;
    }
    if (steps.fault() != ExampleFault::kNone) {
      place.at = steps.begin();
      return steps.fault();
    }
  }
  place.at = parts.begin();
  return parts.fault();
}

// Checks that a step's values match `list`.
ExampleFault check_step(const ExampleFeature& list, const ExampleContents& contents, Pointer at,
                        ExampleErrorPlace& place) {
  place = {at, contents.values};
  if (contents.type == 0) {
    return list.form == Form::kRagged ? ExampleFault::kNone : ExampleFault::kMissing;
  }
  if (contents.type != static_cast<uint8_t>(list.type)) {
    place.found = contents.type;
    return ExampleFault::kType;
  }
  if (list.form == Form::kRagged) return ExampleFault::kNone;
  const bool bytes = contents.type == kBytesList;
  if (contents.values != (bytes ? 1 : list.count)) return ExampleFault::kCount;
  if (bytes && list.form == Form::kFixed && contents.bytes != list.count) {
    place.found = contents.bytes;
    return ExampleFault::kLength;
  }
  return ExampleFault::kNone;
}

}  // namespace

SequenceExampleParser::SequenceExampleParser(Features context, Features lists)
    : features_(all_of(context, lists)),
      context_features_(context.size()),
      entries_(names_of(std::span(features_).subspan(context_features_)), false) {
  if (!context.empty()) context_.emplace(std::move(context));
}

bool SequenceExampleParser::parse(std::span<const std::byte> record, std::span<ExampleValue> values,
                                  std::span<StepsValue> steps, ExampleMemory& memory) {
  if (context_ && !context_->parse(record, values, memory)) {
    failure_ = context_->failure();
    return false;
  }
  const auto* begin = reinterpret_cast<Pointer>(record.data());
  ExampleErrorPlace place;
  ExampleFailure failure;
  failure.fault = find({begin, begin + record.size()}, place.at);
  for (size_t i = 0; failure.fault == ExampleFault::kNone; ++i) {
    if (context_features_ + i == features_.size()) return true;
    failure.feature = static_cast<uint32_t>(context_features_ + i);
    const ExampleFeature& list = features_[failure.feature];
    steps[i] = {};
    if (entries_[i].how != ExampleEntries::Found::kNot) {
      failure.fault = decode(list, entries_[i].span, steps[i], memory, place);
      failure.step = step_;
    } else if (!list.default_value) {
      failure.fault = ExampleFault::kMissing;
      failure.step = ExampleFailure::kNoStep;
      place = {};
    }
  }
  failure.byte = place.at == nullptr ? 0 : static_cast<uint64_t>(place.at - begin);
  failure.found = place.found;
  failure_ = failure;
  return false;
}

ExampleFault SequenceExampleParser::find(Span record, Pointer& at) {
  entries_.clear();
  Fields fields(record);
  while (fields.next()) {
    if (!fields.is(2, kBytes)) continue;
    ExampleFault fault = entries_.find(fields.body(), at);
    if (fault != ExampleFault::kNone) return fault;
  }
  at = fields.begin();
  return fields.fault();
}

// Counts the list's steps and values.
ExampleFault SequenceExampleParser::measure(const ExampleFeature& list, Span entry,
                                            StepsValue& value, ExampleErrorPlace& place) {
  return each_step(entry, place, [&](Span step) {
    ExampleContents contents;
    ExampleFault fault = contents_of(step, false, contents, place);
    if (fault != ExampleFault::kNone) return fault;
    fault = check_step(list, contents, step.begin, place);
    if (fault != ExampleFault::kNone) return fault;
    value.count += contents.type == kBytesList ? contents.bytes : contents.values;
    value.steps = ++step_;
    return fault;
  });
}

ExampleFault SequenceExampleParser::decode(const ExampleFeature& list, Span entry,
                                           StepsValue& value, ExampleMemory& memory,
                                           ExampleErrorPlace& place) {
  step_ = 0;
  ExampleFault fault = measure(list, entry, value, place);
  if (fault != ExampleFault::kNone) return fault;
  ExampleOutput output{.to = allocate(memory, value.count * size_of(list.output())),
                       .narrow = list.output() == DType::kInt32};
  value.data = output.to;
  int64_t* lengths = nullptr;
  if (list.form != Form::kFixed) {
    lengths = reinterpret_cast<int64_t*>(allocate(memory, value.steps * sizeof(int64_t)));
    value.lengths = {lengths, value.steps};
  }
  step_ = 0;
  return each_step(entry, place, [&](Span step) {
    ExampleContents contents;
    contents_of(step, false, contents, place);
    if (lengths != nullptr) {
      lengths[step_] =
          static_cast<int64_t>(contents.type == kBytesList ? contents.bytes : contents.values);
    }
    const ExampleFault put = contents.pieces == 1
                                 ? output.put(contents.type, contents.last, place)
                                 : put_contents(step, false, contents, output, place);
    if (put == ExampleFault::kNone) ++step_;
    return put;
  });
}

}  // namespace penstock
