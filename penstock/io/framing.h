#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

// Splits a file that is read from the front into records; one implementation per format. One
// thread, one file after the other.
class Framing {
 public:
  // The bytes from the current position on, as far as they are read.
  struct Window {
    std::span<const std::byte> bytes;
    uint64_t max_bytes;  // the most bytes up to the end of the file; `bytes` are the first of them

    bool complete() const { return max_bytes == bytes.size(); }
  };

  // What lies at the front of a window.
  struct Next {
    enum class Kind : uint8_t {
      kNeedMore,  // undecided without a window of `bytes`
      kRecord,    // a record of `bytes`; its contents are `size` bytes from `begin` on
      kSkip,      // `bytes` that belong to no record, such as empty lines; not reported as lost
      kCorrupt,   // a record of `bytes` that is lost, because of `why`
      kNoRecord,  // no record begins here, perhaps because of `why`: resync() finds the next one
    };
    Kind kind;
    uint64_t bytes = 0;
    uint64_t begin = 0, size = 0;
    const char* why = nullptr;
  };

  // The next window is from another file, or another position.
  virtual void begin() {}

  // Classifies the front of a window that is not empty. kNeedMore only if the window is not
  // complete; the next call then gets the same bytes and further ones.
  virtual Next next(const Window& window) = 0;

  // The number of bytes at the front that belong to no record: all bytes before the next valid
  // record. `more` (never with a complete window): no record begins before `bytes`, and to decide
  // what follows, `wanted` bytes from there on are needed.
  struct Skipped {
    uint64_t bytes;
    bool more = false;
    uint64_t wanted = 0;
  };
  virtual Skipped resync(const Window& window) { return {window.bytes.size()}; }

  virtual ~Framing() = default;
};

}  // namespace penstock
