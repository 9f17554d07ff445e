#pragma once

#include <cstdint>
#include <cstring>

#include "penstock/io/example_features.h"
#include "penstock/io/example_wire.h"

namespace penstock {

inline constexpr uint8_t kBytesList = 1, kFloatList = 2, kInt64List = 3;  // fields of Feature

// What is wrong, and where; taken down only then.
struct ExampleTrouble {
  wire::Bytes at = nullptr;
  uint64_t found = 0;  // as in ExampleFailure
};

// Where the values of one Feature message lie. Protobuf lets a list come in pieces: packed or value
// by value, in several lists, in several messages. All of them are one list, in order; but a list
// of another type drops what came before it.
struct ExampleContents {
  uint8_t type = 0;      // ExampleFeature::Type; 0: there is no list
  uint64_t first = 0;    // the number of the first list that counts
  uint64_t lists = 0;    // of any type
  uint64_t pieces = 0;   // packed runs of numbers, single numbers, byte strings
  uint64_t values = 0;   // of kBytes: strings
  uint64_t bytes = 0;    // of all pieces
  wire::Span last = {};  // piece: if there is one, these are all values
};

// Where nothing lies.
alignas(8) inline std::byte no_values[8];

// Of `memory`, which is not asked for nothing.
inline std::byte* room(ExampleMemory& memory, size_t bytes) {
  return bytes == 0 ? no_values : memory.take(bytes);
}

// Where values go, one after the other.
struct ExampleOutput {
  std::byte* to = nullptr;
  bool narrow = false;         // int64 become int32
  int64_t* lengths = nullptr;  // one per byte string; nullptr: not wanted

  // A piece. REQUIRED: there is room for its values.
  ExampleFault put(uint8_t type, wire::Span piece, ExampleTrouble& trouble);
};

// `message` is a Feature, or with `entry` an entry of a map whose values are Features.
ExampleFault contents_of(wire::Span message, bool entry, ExampleContents& contents,
                         ExampleTrouble& trouble);
// All of its values. REQUIRED: `contents` are its own, and there is room for them.
ExampleFault put_contents(wire::Span message, bool entry, const ExampleContents& contents,
                          ExampleOutput& output, ExampleTrouble& trouble);

// The values of a packed run of varints, if all of them end.
inline uint64_t count_varints(wire::Span run) {
  uint64_t count = 0;
  for (wire::Bytes at = run.begin; at != run.end; ++at) count += *at < 128;
  return count;
}

// `count` varints of a packed run, written as T. `at` ends behind them, or at the one that is no T
// or, kCount, not there.
template <class T>
ExampleFault unpack(wire::Bytes& at, wire::Bytes end, std::byte* to, uint64_t count,
                    uint64_t& found) {
  constexpr uint64_t kGoesOn = 0x8080808080808080;
  for (; count > 0; --count, to += sizeof(T)) {
    if (at == end) return ExampleFault::kCount;
    const wire::Bytes begin = at;
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

}  // namespace penstock
