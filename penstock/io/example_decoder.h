#pragma once

#include <cstdint>
#include <cstring>

#include "penstock/io/example_features.h"
#include "penstock/io/example_wire.h"

namespace penstock {

inline constexpr uint8_t kBytesList = 1, kFloatList = 2, kInt64List = 3;  // fields of Feature

// The position and value that a failure reports; set only on failure.
struct ExampleErrorPlace {
  wire::Pointer at = nullptr;
  uint64_t found = 0;  // as in ExampleFailure
};

// Where the values of one Feature message lie. Protobuf allows a list in pieces: packed or value by
// value, in several lists, in several messages. All of them are one list, in order, but a list of
// another type replaces the lists before it.
struct ExampleContents {
  uint8_t type = 0;      // ExampleFeature::Type; 0: no list
  uint64_t first = 0;    // the number of the first list that counts
  uint64_t lists = 0;    // of any type
  uint64_t pieces = 0;   // packed runs of numbers, single numbers, byte strings
  uint64_t values = 0;   // of kBytes: strings
  uint64_t bytes = 0;    // of all pieces
  wire::Span last = {};  // the last piece; if pieces == 1, it has all values
};

// The address of empty data.
alignas(8) inline std::byte no_values[8];

// Allocates from `memory`; no_values for 0 bytes.
inline std::byte* allocate(ExampleMemory& memory, size_t bytes) {
  return bytes == 0 ? no_values : memory.take(bytes);
}

// Writes values one after the other.
struct ExampleOutput {
  std::byte* to = nullptr;
  bool narrow = false;         // int64 become int32
  int64_t* lengths = nullptr;  // one per byte string; nullptr: not wanted

  // Appends a piece. REQUIRED: there is space for its values.
  ExampleFault put(uint8_t type, wire::Span piece, ExampleErrorPlace& place);
};

// Measures the values of `message`, a Feature, or with `entry` a map entry whose value is a
// Feature.
ExampleFault contents_of(wire::Span message, bool entry, ExampleContents& contents,
                         ExampleErrorPlace& place);
// Writes all values. REQUIRED: `contents` were measured from the same message, and there is space.
ExampleFault put_contents(wire::Span message, bool entry, const ExampleContents& contents,
                          ExampleOutput& output, ExampleErrorPlace& place);

// The number of varints in a packed run, provided that the last one is complete.
inline uint64_t count_varints(wire::Span run) {
  uint64_t count = 0;
  for (wire::Pointer at = run.begin; at != run.end; ++at) count += *at < 128;
  return count;
}

// Writes `count` varints of a packed run as T. Afterwards `at` is after them. On failure `at` is at
// the varint that does not fit into T or, with kCount, is missing.
template <class T>
ExampleFault unpack(wire::Pointer& at, wire::Pointer end, std::byte* to, uint64_t count,
                    uint64_t& found) {
  constexpr uint64_t kGoesOn = 0x8080808080808080;
  for (; count > 0; --count, to += sizeof(T)) {
    if (at == end) return ExampleFault::kCount;
    const wire::Pointer begin = at;
    uint64_t value = *at;
    if (value < 128) {
      ++at;
    } else {
      uint64_t stops = 0;
      if (end - at >= 8) {
        std::memcpy(&value, at, 8);
        stops = ~value & kGoesOn;
      }
      if (stops != 0) [[likely]] {
        at += (std::countr_zero(stops) >> 3) + 1;
        value &= (stops ^ (stops - 1)) & ~kGoesOn;  // up to the first byte that ends a number
        // Eight groups of 7 bits become four of 14, two of 28, one of 56.
        value = (value & 0x7F007F007F007F00) >> 1 | (value & 0x007F007F007F007F);
        value = (value & 0xFFFF0000FFFF0000) >> 2 | (value & 0x0000FFFF0000FFFF);
        value = value >> 32 << 28 | (value & 0xFFFFFFFF);
      } else if (ExampleFault fault = wire::varint(at, end, value); fault != ExampleFault::kNone) {
        at = begin;
        return fault;
      }
    }
    const T written = static_cast<T>(value);
    if constexpr (sizeof(T) < 8) {
      if (static_cast<int64_t>(written) != static_cast<int64_t>(value)) {
        at = begin;
        found = value;
        return ExampleFault::kRange;
      }
    }
    std::memcpy(to, &written, sizeof(T));
  }
  return ExampleFault::kNone;
}

// Decodes the values of one wanted feature from an entry that ExampleEntries found. Immutable.
class ExampleDecoder {
 public:
  // REQUIRED: check() has accepted the feature.
  explicit ExampleDecoder(const ExampleFeature& feature);

  // kMissing if the entry has no list.
  ExampleFault decode(const ExampleEntries::Found& entry, ExampleValue& value,
                      ExampleMemory& memory, ExampleErrorPlace& place) const;

 private:
  enum class Kind : uint8_t { kRow, kVarintRow, kFloats, kVarints, kString, kStrings };

  ExampleFault whole(wire::Span run, ExampleValue& value, ExampleMemory& memory,
                     ExampleErrorPlace& place) const;
  ExampleFault in_pieces(wire::Span entry, const ExampleContents& contents, ExampleValue& value,
                         ExampleMemory& memory, ExampleErrorPlace& place) const;
  ExampleFault wrong_count(wire::Pointer at, uint64_t count, ExampleErrorPlace& place) const;
  ExampleFault varints(wire::Span run, std::byte* to, uint64_t count,
                       ExampleErrorPlace& place) const;

  Kind kind_;
  uint8_t type_;  // ExampleFeature::Type
  bool narrow_;   // int64 become int32
  uint64_t value_bytes_;
  uint64_t count_;  // of a row
  uint64_t row_bytes_;
};

}  // namespace penstock
