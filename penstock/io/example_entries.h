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

// Finds the wanted names in a map<string, message> as it lies on the wire: the entries of Features
// or FeatureLists.
//
// Records of a file look alike. So for each place of the map it keeps the bytes before the values
// of the entry that came there in the record before (the head: lengths, name, type). Where they
// are the same again, one comparison has checked all of them. Where only the lengths differ, the
// name is compared with the one that came at this place. A name is looked up only where that fails.
// Names that nobody wants are kept at their places like others.
//
// One thread.
class ExampleEntries {
 public:
  // A wanted name's entry; the last one, where there are several, as protobuf has it.
  struct Found {
    enum How : uint8_t {
      kNot,    // there is none
      kPlain,  // `span` are the values of the one packed list, or the one byte string, in it
      kEntry,  // `span` is the whole entry, to be gone through
    };
    wire::Span span;
    How how = kNot;
    uint8_t type = 0;  // kPlain: the list's ExampleFeature::Type
  };

  // REQUIRED: no name comes twice. `plain`: the messages are Features, and Found may be kPlain.
  ExampleEntries(std::vector<std::string> names, bool plain);
  ExampleEntries(const ExampleEntries&) = delete;
  ExampleEntries& operator=(const ExampleEntries&) = delete;

  // Before each record.
  void clear();
  // One Features or FeatureLists message; the parts of one that comes in several, one after the
  // other. On failure `at` is where. What is in entries that are not wanted is not looked at.
  ExampleFault find(wire::Span message, wire::Bytes& at);
  const Found& operator[](size_t name) const { return found_[name]; }

 private:
  static constexpr uint32_t kNobody = UINT32_MAX;
  static constexpr size_t kMostPlaces = 4096;

  struct Place {
    uint32_t name = kNobody;
    uint8_t head_bytes = 0;  // 0: unknown
    uint8_t key_at = 0, key_bytes = 0;
    uint8_t type = 0;
    uint64_t value_bytes = 0;
    std::array<uint8_t, 48> head;
  };

  bool ordinary(wire::Bytes& at, wire::Bytes end, Place* place);
  ExampleFault any(wire::Bytes& at, wire::Bytes end);
  uint32_t look_up(wire::Span key) const;

  const std::vector<std::string> names_;
  const bool plain_;
  std::unordered_map<std::string_view, uint32_t> numbers_;
  std::vector<Found> found_;
  std::vector<Place> places_;
  size_t place_ = 0;  // the next one's number
};

}  // namespace penstock
