#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "penstock/io/example_wire.h"

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
