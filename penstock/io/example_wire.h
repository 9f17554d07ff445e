#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "penstock/io/example_features.h"

namespace penstock::wire {

// Reads protobuf messages, as far as tf.Example needs. No function reads at or beyond its `end`.

static_assert(std::endian::native == std::endian::little);

using Pointer = const uint8_t*;

enum Type : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kBegin = 3, kEnd = 4, kFixed32 = 5 };

// The tag of a field that is a string, a message or a packed list.
constexpr uint8_t tag(uint32_t number) { return static_cast<uint8_t>(number << 3 | kBytes); }

// Reads the varint at `at` and moves `at` past the varint. Bits above 64 are dropped, as in
// protobuf.
inline ExampleFault varint(Pointer& at, Pointer end, uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    if (at == end) return ExampleFault::kCut;
    const uint8_t byte = *at++;
    value |= static_cast<uint64_t>(byte & 127) << shift;
    if (byte < 128) return ExampleFault::kNone;
  }
  return ExampleFault::kVarint;
}

// A span of bytes in a message.
struct Span {
  Pointer begin = nullptr, end = nullptr;
  size_t size() const { return static_cast<size_t>(end - begin); }
};

// Reads the varint at `at` as a length and returns the position after the varint. nullptr: the body
// of this length does not fit before `end`, or the varint is unusual. A fast path for well-formed
// messages.
inline Pointer length(Pointer at, Pointer end, uint64_t& value) {
  if (at == end) return nullptr;
  value = *at++;
  for (int shift = 7; value >> shift != 0; shift += 7) {  // the highest bit: more bytes follow
    if (at == end || shift > 28) return nullptr;
    value = (value & ((uint64_t{1} << shift) - 1)) | static_cast<uint64_t>(*at++) << shift;
  }
  return value <= static_cast<uint64_t>(end - at) ? at : nullptr;
}

// The contents of the field `number` if that field ends exactly at `end`; otherwise nullptr.
inline Pointer only(uint32_t number, Pointer at, Pointer end) {
  if (at == end || *at != tag(number)) return nullptr;
  uint64_t bytes;
  at = length(at + 1, end, bytes);
  return at != nullptr && at + bytes == end ? at : nullptr;
}

// The values of a Feature with a single list of one packed run or one byte string; they end at
// `end`. nullptr: the Feature has another form.
inline Pointer plain_values(Pointer at, Pointer end, uint8_t& type) {
  if (at == end) return nullptr;
  type = *at >> 3;
  if (type < 1 || type > 3) return nullptr;
  at = only(type, at, end);
  return at == nullptr ? nullptr : only(1, at, end);
}

// Iterates over the fields of a message. Groups are skipped.
class Fields {
 public:
  explicit Fields(Span message) : at_(message.begin), end_(message.end) {}

  // False: at the end, or invalid: see fault().
  bool next() {
    while (at_ != end_) {
      begin_ = at_;
      if (!step()) return false;
      if (type_ != kBegin) return true;
      if (!skip_group()) return false;
    }
    return false;
  }
  ExampleFault fault() const { return fault_; }
  Pointer begin() const { return begin_; }  // start of the current or the invalid field
  Pointer at() const { return at_; }        // the position after that field

  uint32_t number() const { return number_; }
  Type type() const { return type_; }
  bool is(uint32_t number, Type type) const { return number_ == number && type_ == type; }
  Span body() const { return body_; }  // without tag and length; kVarint: its bytes

 private:
  static constexpr int kMaxDepth = 100;

  bool fail(ExampleFault fault) {
    fault_ = fault;
    return false;
  }

  // One field, or the tag of a group.
  bool step() {
    uint64_t number_and_type;
    if (ExampleFault fault = varint(at_, end_, number_and_type); fault != ExampleFault::kNone) {
      return fail(fault);
    }
    type_ = static_cast<Type>(number_and_type & 7);
    const uint64_t number = number_and_type >> 3;
    if (number == 0 || number >= uint64_t{1} << 29) return fail(ExampleFault::kTag);
    number_ = static_cast<uint32_t>(number);
    switch (type_) {
      case kVarint: {
        const Pointer begin = at_;
        uint64_t value;
        fault_ = varint(at_, end_, value);
        body_ = {begin, at_};
        return fault_ == ExampleFault::kNone;
      }
      case kFixed64:
        return take(8);
      case kFixed32:
        return take(4);
      case kBytes: {
        uint64_t bytes;
        if (ExampleFault fault = varint(at_, end_, bytes); fault != ExampleFault::kNone) {
          return fail(fault);
        }
        return take(bytes);
      }
      case kBegin:
        return true;
      case kEnd:
        return fail(ExampleFault::kGroup);
    }
    return fail(ExampleFault::kTag);
  }

  bool take(uint64_t bytes) {
    if (bytes > static_cast<uint64_t>(end_ - at_)) return fail(ExampleFault::kCut);
    body_ = {at_, at_ + bytes};
    at_ += bytes;
    return true;
  }

  // `at_` is after the group's first tag.
  bool skip_group() {
    uint32_t open[kMaxDepth];
    int depth = 0;
    open[depth++] = number_;
    while (depth > 0) {
      if (at_ == end_) return fail(ExampleFault::kGroup);
      if (step()) {
        if (type_ != kBegin) continue;
        if (depth == kMaxDepth) return fail(ExampleFault::kGroup);
        open[depth++] = number_;
      } else if (fault_ == ExampleFault::kGroup && number_ == open[depth - 1]) {
        fault_ = ExampleFault::kNone;
        --depth;
      } else {
        return false;
      }
    }
    return true;
  }

  Pointer begin_ = nullptr;
  Pointer at_;
  const Pointer end_;
  ExampleFault fault_ = ExampleFault::kNone;
  uint32_t number_ = 0;
  Type type_ = kVarint;
  Span body_;
};

}  // namespace penstock::wire

namespace penstock {

// Finds the wanted names in the wire form of a map<string, message>: the entries of Features or
// FeatureLists.
//
// The records of a file resemble each other. So for each position in the map the class caches the
// head of the previous record's entry: the bytes before its values (lengths, name, type). If the
// head is the same again, one comparison checks all of it. If only the lengths differ, the name is
// compared with the cached one. Only if that fails too, the name is looked up. Unwanted names are
// cached like wanted ones.
//
// One thread.
class ExampleEntries {
 public:
  // The entry of a wanted name; of several entries the last one, as protobuf specifies.
  struct Found {
    enum How : uint8_t {
      kNot,    // not found
      kPlain,  // `span` are the values: one packed list, or one byte string
      kEntry,  // `span` is the whole entry, which needs parsing
    };
    wire::Span span;
    How how = kNot;
    uint8_t type = 0;  // kPlain: the list's ExampleFeature::Type
  };

  // REQUIRED: the names are distinct. `plain`: the messages are Features, and Found may be kPlain.
  ExampleEntries(std::vector<std::string> names, bool plain);
  ExampleEntries(const ExampleEntries&) = delete;
  ExampleEntries& operator=(const ExampleEntries&) = delete;

  // Call before each record.
  void clear();
  // Searches one Features or FeatureLists message, or one part of a message that comes in several.
  // On failure `at` is the position. Unwanted entries are not parsed.
  ExampleFault find(wire::Span message, wire::Pointer& at);
  const Found& operator[](size_t name) const { return found_[name]; }

 private:
  static constexpr uint32_t kUnwanted = UINT32_MAX;
  static constexpr size_t kMaxPlaces = 4096;

  struct Place {
    uint32_t name = kUnwanted;
    uint8_t head_bytes = 0;  // 0: unknown
    uint8_t key_at = 0, key_bytes = 0;
    uint8_t type = 0;
    uint64_t value_bytes = 0;
    std::array<uint8_t, 48> head;
  };

  bool ordinary(wire::Pointer& at, wire::Pointer end, Place* place);
  ExampleFault any(wire::Pointer& at, wire::Pointer end);
  uint32_t lookup(wire::Span key) const;

  const std::vector<std::string> names_;
  const bool plain_;
  std::unordered_map<std::string_view, uint32_t> numbers_;
  std::vector<Found> found_;
  std::vector<Place> places_;
  size_t place_ = 0;  // the next one's number
};

}  // namespace penstock
