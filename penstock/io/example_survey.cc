#include "penstock/io/example_survey.h"

#include <algorithm>

#include "penstock/io/example_decoder.h"

namespace penstock {

void ExampleSurvey::add(std::span<const std::byte> record) {
  ++record_;
  const auto* begin = reinterpret_cast<wire::Pointer>(record.data());
  bool any = false, lists = false;
  if (!example({begin, begin + record.size()}, any, lists) || !(any || lists)) {
    ++others_;
    return;
  }
  ++examples_;
  sequences_ += lists;
}

bool ExampleSurvey::example(wire::Span message, bool& any, bool& lists) {
  wire::Fields fields(message);
  while (fields.next()) {
    if (fields.is(2, wire::kBytes)) lists = true;
    if (!fields.is(1, wire::kBytes)) continue;
    wire::Fields entries(fields.body());
    while (entries.next()) {
      if (!entries.is(1, wire::kBytes)) continue;
      if (!entry(entries.body())) return false;
      any = true;
    }
    if (entries.fault() != ExampleFault::kNone) return false;
  }
  return fields.fault() == ExampleFault::kNone;
}

bool ExampleSurvey::entry(wire::Span entry) {
  std::string_view name;
  wire::Fields fields(entry);
  while (fields.next()) {
    if (!fields.is(1, wire::kBytes)) continue;
    name = {reinterpret_cast<const char*>(fields.body().begin), fields.body().size()};
  }
  ExampleContents contents;
  ExampleErrorPlace place;
  if (fields.fault() != ExampleFault::kNone ||
      contents_of(entry, true, contents, place) != ExampleFault::kNone) {
    return false;
  }
  auto found = features_.find(name);
  if (found == features_.end()) {
    if (features_.size() == kMaxNames) return true;
    found = features_.emplace(name, Feature{}).first;
  }
  Feature& feature = found->second;
  if (feature.last == record_) return true;  // a repeated name
  feature.last = record_;
  const bool first = feature.records++ == 0;
  ++feature.of_type[contents.type];
  feature.least = first ? contents.values : std::min(feature.least, contents.values);
  feature.most = std::max(feature.most, contents.values);
  feature.least_bytes = first ? contents.bytes : std::min(feature.least_bytes, contents.bytes);
  feature.most_bytes = std::max(feature.most_bytes, contents.bytes);
  return true;
}

}  // namespace penstock
