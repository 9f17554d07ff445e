#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/io/example_parser.h"

namespace penstock {

using Type = ExampleFeature::Type;
using Form = ExampleFeature::Form;
using Features = std::vector<ExampleFeature>;

// ---- a plain protobuf implementation from the specification, for comparison

inline std::string varint(uint64_t value) {
  std::string bytes;
  for (; value > 127; value >>= 7) bytes += static_cast<char>((value & 127) | 128);
  return bytes + static_cast<char>(value);
}
// A string, message or packed list.
inline std::string field(uint32_t number, const std::string& body) {
  return varint(number << 3 | 2) + varint(body.size()) + body;
}
inline std::string varint_field(uint32_t number, uint64_t value) {
  return varint(number << 3) + varint(value);
}
template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

inline std::string packed(const std::vector<int64_t>& values) {
  std::string bytes;
  for (int64_t value : values) bytes += varint(static_cast<uint64_t>(value));
  return bytes;
}
// Features with one list.
inline std::string int64_feature(const std::vector<int64_t>& values) {
  return field(3, field(1, packed(values)));
}
inline std::string float_feature(const std::vector<float>& values) {
  return field(2, field(1, raw(values)));
}
inline std::string bytes_feature(const std::vector<std::string>& values) {
  std::string list;
  for (const std::string& value : values) list += field(1, value);
  return field(1, list);
}
inline std::string entry(const std::string& name, const std::string& feature) {
  return field(1, field(1, name) + field(2, feature));
}
inline std::string example(const std::string& entries) { return field(1, entries); }

struct WireField {
  uint64_t number = 0;
  int type = 0;        // 0 varint, 1 fixed64, 2 bytes, 5 fixed32; groups are dropped
  uint64_t value = 0;  // of a varint
  std::string body;    // of the others
};

// Takes a varint off the front.
inline std::optional<uint64_t> take_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < 10 && i < bytes.size(); ++i) {
    const auto byte = static_cast<uint8_t>(bytes[i]);
    value |= static_cast<uint64_t>(byte & 127) << (7 * i);
    if (byte < 128) {
      bytes.remove_prefix(i + 1);
      return value;
    }
  }
  return std::nullopt;
}

// Takes fields off the front until the end, or until the end of the group `group`.
inline std::optional<std::vector<WireField>> take_fields(std::string_view& bytes, uint64_t group,
                                                         int depth) {
  std::vector<WireField> fields;
  while (!bytes.empty()) {
    const auto tag = take_varint(bytes);
    if (!tag || *tag >> 3 == 0 || *tag >> 32 != 0) return std::nullopt;
    WireField made{.number = *tag >> 3, .type = static_cast<int>(*tag & 7), .value = 0, .body = {}};
    size_t length = 0;
    switch (made.type) {
      case 0: {
        const auto value = take_varint(bytes);
        if (!value) return std::nullopt;
        made.value = *value;
        break;
      }
      case 1:
        length = 8;
        break;
      case 2: {
        const auto value = take_varint(bytes);
        if (!value) return std::nullopt;
        length = *value;
        break;
      }
      case 3:
        if (depth == 100 || !take_fields(bytes, made.number, depth + 1)) return std::nullopt;
        continue;
      case 4:
        if (group != made.number) return std::nullopt;
        return fields;
      case 5:
        length = 4;
        break;
      default:
        return std::nullopt;
    }
    if (length > bytes.size()) return std::nullopt;
    made.body = bytes.substr(0, length);
    bytes.remove_prefix(length);
    fields.push_back(made);
  }
  if (group != 0) return std::nullopt;
  return fields;
}
// nullopt: no message.
inline std::optional<std::vector<WireField>> fields_of(std::string_view message) {
  return take_fields(message, 0, 0);
}

// The merged value of a Feature.
struct PlainFeature {
  uint64_t type = 0;  // field number of its list; 0: none
  std::vector<std::string> strings;
  std::vector<float> floats;
  std::vector<int64_t> ints;
};

// The value of a Feature in these parts. If a list is replaced by a later one, only its framing is
// checked.
inline std::optional<PlainFeature> plain_feature(const std::vector<std::string>& parts) {
  PlainFeature made;
  std::vector<std::string> packed_ints;
  for (const std::string& part : parts) {
    const auto lists = fields_of(part);
    if (!lists) return std::nullopt;
    for (const WireField& list : *lists) {
      if (list.type != 2 || list.number > 3) continue;
      if (list.number != made.type) {
        made = {.type = list.number, .strings = {}, .floats = {}, .ints = {}};
        packed_ints.clear();
      }
      const auto values = fields_of(list.body);
      if (!values) return std::nullopt;
      for (const WireField& value : *values) {
        if (value.number != 1) continue;
        if (made.type == 1 && value.type == 2) made.strings.push_back(value.body);
        if (made.type == 2 && (value.type == 2 || value.type == 5)) {
          if (value.body.size() % 4 != 0) return std::nullopt;
          for (size_t i = 0; i < value.body.size(); i += 4) {
            made.floats.emplace_back();
            std::memcpy(&made.floats.back(), &value.body[i], 4);
          }
        }
        if (made.type == 3 && value.type == 2) packed_ints.push_back(value.body);
        if (made.type == 3 && value.type == 0) packed_ints.push_back(varint(value.value));
      }
    }
  }
  for (std::string_view run : packed_ints) {
    while (!run.empty()) {
      const auto value = take_varint(run);
      if (!value) return std::nullopt;
      made.ints.push_back(static_cast<int64_t>(*value));
    }
  }
  return made;
}

// The values of a map<string, message>, in parts, by name; `number`: the map's message in the
// record.
using PlainMap = std::map<std::string, std::vector<std::string>>;
inline std::optional<PlainMap> plain_map(std::string_view record, uint64_t number) {
  PlainMap made;
  const auto parts = fields_of(record);
  if (!parts) return std::nullopt;
  for (const WireField& part : *parts) {
    if (part.number != number || part.type != 2) continue;
    const auto entries = fields_of(part.body);
    if (!entries) return std::nullopt;
    for (const WireField& one : *entries) {
      if (one.number != 1 || one.type != 2) continue;
      const auto sides = fields_of(one.body);
      if (!sides) return std::nullopt;
      std::string name;
      std::vector<std::string> values;
      for (const WireField& side : *sides) {
        if (side.type != 2) continue;
        if (side.number == 1) name = side.body;
        if (side.number == 2) values.push_back(side.body);
      }
      made[name] = values;
    }
  }
  return made;
}

// ---- the parser, with memory and rows of its own

struct ExampleHeap : ExampleMemory {
  std::byte* take(size_t bytes) override {
    pieces.push_back(std::make_unique<std::byte[]>(bytes));
    return pieces.back().get();
  }
  std::vector<std::unique_ptr<std::byte[]>> pieces;
};

// The parsed values of a feature, as bytes of their dtype.
struct GotValue {
  std::string values;
  std::vector<int64_t> lengths;
  uint64_t count = 0;
  bool operator==(const GotValue&) const = default;
};

template <class T>
std::vector<T> as(const GotValue& got) {
  std::vector<T> values(got.values.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), got.values.data(), values.size() * sizeof(T));
  return values;
}

// A record in memory of exactly its size, so that a sanitizer detects reads beyond it.
struct ExactRecord {
  explicit ExactRecord(std::string_view bytes) : size(bytes.size()), copy(new std::byte[size]) {
    if (size != 0) std::memcpy(copy.get(), bytes.data(), size);
  }
  std::span<const std::byte> span() const { return {copy.get(), size}; }
  size_t size;
  std::unique_ptr<std::byte[]> copy;
};

inline void make_rows(std::span<const ExampleFeature> features, std::span<ExampleValue> values,
                      ExampleHeap& heap) {
  for (size_t i = 0; i < features.size(); ++i) {
    if (features[i].form != Form::kFixed) continue;
    values[i].row = heap.take(features[i].count * size_of(features[i].output()));
  }
}
inline std::vector<GotValue> got_values(std::span<const ExampleFeature> features,
                                        std::span<const ExampleValue> values) {
  std::vector<GotValue> got(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const bool fixed = features[i].form == Form::kFixed;
    const std::byte* data = fixed ? values[i].row : values[i].data;
    got[i].count = fixed ? features[i].count : values[i].count;
    got[i].values.assign(reinterpret_cast<const char*>(data),
                         got[i].count * size_of(features[i].output()));
    got[i].lengths.assign(values[i].lengths.begin(), values[i].lengths.end());
  }
  return got;
}

// nullopt: a failure.
inline std::optional<std::vector<GotValue>> parse(ExampleParser& parser, std::string_view bytes) {
  const ExactRecord record(bytes);
  ExampleHeap heap;
  std::vector<ExampleValue> values(parser.features().size());
  make_rows(parser.features(), values, heap);
  if (!parser.parse(record.span(), values, heap)) return std::nullopt;
  return got_values(parser.features(), values);
}

// The expected value of a feature. nullopt: a failure.
inline std::optional<GotValue> expected(const ExampleFeature& wanted,
                                        const std::optional<PlainFeature>& feature) {
  if (!feature) return std::nullopt;
  GotValue made;
  if (feature->type == 0) {
    if (!wanted.default_value) return std::nullopt;
    made.values.assign(reinterpret_cast<const char*>(wanted.default_value->values.data()),
                       wanted.default_value->values.size());
    made.lengths = wanted.default_value->lengths;
    made.count = made.values.size() / size_of(wanted.output());
    return made;
  }
  if (feature->type != static_cast<uint64_t>(wanted.type)) return std::nullopt;
  if (feature->type == 1) {
    for (const std::string& string : feature->strings) {
      made.values += string;
      if (wanted.form == Form::kStrings)
        made.lengths.push_back(static_cast<int64_t>(string.size()));
    }
    if (wanted.form != Form::kStrings && feature->strings.size() != 1) return std::nullopt;
  } else if (feature->type == 2) {
    made.values = raw(feature->floats);
  } else if (wanted.output() == DType::kInt64) {
    made.values = raw(feature->ints);
  } else {
    for (int64_t value : feature->ints) {
      if (value < INT32_MIN || value > INT32_MAX) return std::nullopt;
      made.values += raw(std::vector<int32_t>{static_cast<int32_t>(value)});
    }
  }
  made.count = made.values.size() / size_of(wanted.output());
  if (wanted.form == Form::kFixed && made.count != wanted.count) return std::nullopt;
  return made;
}
inline std::optional<std::vector<GotValue>> expected(std::span<const ExampleFeature> features,
                                                     std::string_view record) {
  const auto map = plain_map(record, 1);
  if (!map) return std::nullopt;
  std::vector<GotValue> made;
  for (const ExampleFeature& wanted : features) {
    auto found = map->find(wanted.name);
    auto value =
        expected(wanted, found == map->end() ? PlainFeature{} : plain_feature(found->second));
    if (!value) return std::nullopt;
    made.push_back(*value);
  }
  return made;
}

}  // namespace penstock
