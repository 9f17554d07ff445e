#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "penstock/base/os.h"

namespace penstock {

// Copies many small pieces of files out of their mappings (File::mapping) by one system call,
// where reading them one by one would cost one each and wait for the memory each time. The kernel
// does the copying, into memory of its own: where a file ends before what was asked for, that is an
// errno, while our own load would be SIGBUS. One thread.
class ScatteredRead {
 public:
  static constexpr size_t kMostPieces = 64;
  static constexpr uint64_t kMostBytes = 256 << 10;

  struct Piece {
    const std::byte* from;  // in a mapping
    std::byte* to;
    uint64_t bytes;
  };

  ScatteredRead() = default;
  ScatteredRead(const ScatteredRead&) = delete;
  ScatteredRead& operator=(const ScatteredRead&) = delete;
  ~ScatteredRead() { close(); }

  // All of them. False: a file has become shorter, cannot be read, or this machine has no room for
  // it. Whoever reads the pieces one by one will hear which and why; nothing is to be said of what
  // is at `to` then. REQUIRED: at most kMostPieces, of kMostBytes together.
  bool copy(std::span<const Piece> pieces) noexcept;

 private:
  bool open() noexcept;
  void close() noexcept;

  os::Fd file_;  // in memory, kMostBytes long
  std::byte* memory_ = nullptr;
  pid_t owner_ = 0;  // a fork of this process needs another file
};

}  // namespace penstock
