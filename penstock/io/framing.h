#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace penstock {

// How a format says where its records end, for whoever goes through a file from the front. One
// thread, one file after the other.
class Framing {
 public:
  // What is there of a file from a place on.
  struct Front {
    std::span<const std::byte> bytes;
    uint64_t most;  // bytes that there can be from here to the end; `bytes` are the first of them
    bool whole() const { return most == bytes.size(); }
  };

  struct Cut {
    enum class Kind : uint8_t {
      kMore,     // `bytes` are needed in all to tell
      kRecord,   // a record, of `bytes`; what is wanted of it are `size` of them, from `begin` on
      kNothing,  // `bytes` that are no record and that nobody misses
      kBad,      // a record of `bytes` that is lost, because of `why`
      kLost,     // no record begins here: resume() tells where the next one does
    };
    Kind kind;
    uint64_t bytes = 0;
    uint64_t begin = 0, size = 0;
    const char* why = nullptr;
  };

  // The next bytes are those of another file, or of another place.
  virtual void begin() {}

  // The record at the front, which is not empty. kMore only if the front is not whole. After kMore
  // it is called with the same bytes and further ones.
  virtual Cut cut(const Front& front) = 0;

  // How many bytes of the front belong to no record: all those in front of a sound one; or, with
  // `more`, which a whole front never has, what begins behind `bytes` cannot be told without
  // `wanted` bytes from there on.
  struct Gap {
    uint64_t bytes;
    bool more = false;
    uint64_t wanted = 0;
  };
  virtual Gap resume(const Front& front) { return {front.bytes.size()}; }

  virtual ~Framing() = default;
};

}  // namespace penstock
