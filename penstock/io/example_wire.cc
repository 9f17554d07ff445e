#include "penstock/io/example_wire.h"

#include <algorithm>
#include <utility>

namespace penstock {

using namespace wire;

ExampleEntries::ExampleEntries(std::vector<std::string> names, bool plain)
    : names_(std::move(names)), plain_(plain), found_(names_.size()) {
  for (uint32_t i = 0; i < names_.size(); ++i) numbers_.emplace(names_[i], i);
}

void ExampleEntries::clear() {
  std::fill(found_.begin(), found_.end(), Found{});
  place_ = 0;
}

ExampleFault ExampleEntries::find(Span message, Pointer& at) {
  at = message.begin;
  const Pointer end = message.end;
  while (at != end) {
    Place* place = nullptr;
    if (place_ < places_.size()) {
      place = &places_[place_];
      const size_t left = static_cast<size_t>(end - at);
      if (place->head_bytes != 0 && place->head_bytes + place->value_bytes <= left &&
          std::memcmp(at, place->head.data(), place->head_bytes) == 0) [[likely]] {
        const Pointer values = at + place->head_bytes;
        at = values + place->value_bytes;
        if (place->name != kUnwanted)
          found_[place->name] = {{values, at}, Found::kPlain, place->type};
        ++place_;
        continue;
      }
    } else if (place_ < kMaxPlaces) {
      place = &places_.emplace_back();
    }
    if (ordinary(at, end, place)) {
      ++place_;
    } else if (ExampleFault fault = any(at, end); fault != ExampleFault::kNone) {
      return fault;
    }
  }
  return ExampleFault::kNone;
}

// Parses an entry in the usual form: the name, then the message, nothing else. False: it has
// another form, and `at` is unchanged.
bool ExampleEntries::ordinary(Pointer& at, Pointer end, Place* place) {
  uint64_t bytes;
  if (*at != tag(1)) return false;
  const Pointer entry = length(at + 1, end, bytes);
  if (entry == nullptr) return false;
  end = entry + bytes;
  if (entry == end || *entry != tag(1)) return false;
  const Pointer key = length(entry + 1, end, bytes);
  if (key == nullptr) return false;
  const Span name{key, key + bytes};
  const Pointer value = only(2, name.end, end);
  if (value == nullptr) return false;

  uint32_t number;
  if (place != nullptr && place->key_at != 0 && place->key_bytes == name.size() &&
      std::memcmp(key, &place->head[place->key_at], name.size()) == 0) {
    number = place->name;
  } else {
    number = lookup(name);
  }

  uint8_t type = 0;
  const Pointer values = plain_ ? plain_values(value, end, type) : nullptr;
  if (number != kUnwanted) {
    found_[number] = values != nullptr ? Found{{values, end}, Found::kPlain, type}
                                       : Found{{entry, end}, Found::kEntry, 0};
  }

  if (place != nullptr) {
    // If the message is not plain, the head ends with the name.
    const size_t head = static_cast<size_t>((values != nullptr ? values : name.end) - at);
    if (head <= place->head.size()) {
      std::memcpy(place->head.data(), at, head);
      place->name = number;
      place->head_bytes = values != nullptr ? static_cast<uint8_t>(head) : 0;
      place->key_at = static_cast<uint8_t>(key - at);
      place->key_bytes = static_cast<uint8_t>(name.size());
      place->type = type;
      place->value_bytes = values != nullptr ? static_cast<uint64_t>(end - values) : 0;
    } else {
      place->head_bytes = 0;
      place->key_at = 0;
    }
  }
  at = end;
  return true;
}

// Parses a field of any kind, which may be an entry with its name repeated, last, or missing.
ExampleFault ExampleEntries::any(Pointer& at, Pointer end) {
  Fields map({at, end});
  if (!map.next()) {
    if (map.fault() != ExampleFault::kNone)
      at = map.begin();
    else
      at = end;  // groups
    return map.fault();
  }
  at = map.at();
  if (!map.is(1, kBytes)) return ExampleFault::kNone;
  ++place_;
  Fields entry(map.body());
  Span name;
  while (entry.next()) {
    if (entry.is(1, kBytes)) name = entry.body();
  }
  if (entry.fault() != ExampleFault::kNone) {
    at = entry.begin();
    return entry.fault();
  }
  const uint32_t number = lookup(name);
  if (number != kUnwanted) found_[number] = {map.body(), Found::kEntry, 0};
  return ExampleFault::kNone;
}

uint32_t ExampleEntries::lookup(Span key) const {
  auto found = numbers_.find({reinterpret_cast<const char*>(key.begin), key.size()});
  return found == numbers_.end() ? kUnwanted : found->second;
}

}  // namespace penstock
