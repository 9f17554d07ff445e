#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "penstock/io/example_features.h"

// The bytes of a protobuf message, as far as tf.Example needs them. Nothing here reads at or beyond
// the `end` that it is given.
namespace penstock::wire {

static_assert(std::endian::native == std::endian::little);

using Bytes = const uint8_t*;

enum Type : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kBegin = 3, kEnd = 4, kFixed32 = 5 };

// The tag of a field that is a string, a message or a packed list.
constexpr uint8_t tag(uint32_t number) { return static_cast<uint8_t>(number << 3 | kBytes); }

// The varint at `at`, which is moved behind it. As protobuf does, drops what is beyond 64 bits.
inline ExampleFault varint(Bytes& at, Bytes end, uint64_t& value) {
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
  Bytes begin = nullptr, end = nullptr;
  size_t size() const { return static_cast<size_t>(end - begin); }
};

// The varint at `at` if it is the length of what then fits before `end`; else nullptr, and why is
// not asked. For messages as they usually are.
inline Bytes length(Bytes at, Bytes end, uint64_t& value) {
  if (at == end) return nullptr;
  value = *at++;
  for (int shift = 7; value >> shift != 0; shift += 7) {  // its highest bit says that it goes on
    if (at == end || shift > 28) return nullptr;
    value = (value & ((uint64_t{1} << shift) - 1)) | static_cast<uint64_t>(*at++) << shift;
  }
  return value <= static_cast<uint64_t>(end - at) ? at : nullptr;
}

// The field `number` that fills all that is left before `end`: what is in it, or nullptr.
inline Bytes only(uint32_t number, Bytes at, Bytes end) {
  if (at == end || *at != tag(number)) return nullptr;
  uint64_t bytes;
  at = length(at + 1, end, bytes);
  return at != nullptr && at + bytes == end ? at : nullptr;
}

// The values in a Feature that has one list, and that one packed run or one byte string: they go to
// `end`. nullptr: it is not as plain as that.
inline Bytes plain_values(Bytes at, Bytes end, uint8_t& type) {
  if (at == end) return nullptr;
  type = *at >> 3;
  if (type < 1 || type > 3) return nullptr;
  at = only(type, at, end);
  return at == nullptr ? nullptr : only(1, at, end);
}

// The fields of a message, one after the other. Groups are gone over, and given to nobody.
class Fields {
 public:
  explicit Fields(Span message) : at_(message.begin), end_(message.end) {}

  // False: it is over, or broken.
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
  Bytes begin() const { return begin_; }  // of the field that was given last, or is broken
  Bytes at() const { return at_; }        // behind it

  uint32_t number() const { return number_; }
  Type type() const { return type_; }
  bool is(uint32_t number, Type type) const { return number_ == number && type_ == type; }
  Span body() const { return body_; }  // what is behind tag and length; kVarint: its bytes

 private:
  static constexpr int kDeepest = 100;

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
        const Bytes begin = at_;
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

  // Behind its first tag.
  bool skip_group() {
    uint32_t open[kDeepest];
    int depth = 0;
    open[depth++] = number_;
    while (depth > 0) {
      if (at_ == end_) return fail(ExampleFault::kGroup);
      if (step()) {
        if (type_ != kBegin) continue;
        if (depth == kDeepest) return fail(ExampleFault::kGroup);
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

  Bytes begin_ = nullptr;
  Bytes at_;
  const Bytes end_;
  ExampleFault fault_ = ExampleFault::kNone;
  uint32_t number_ = 0;
  Type type_ = kVarint;
  Span body_;
};

}  // namespace penstock::wire
