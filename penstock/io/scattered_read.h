#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "penstock/base/os.h"

namespace penstock {

// Copies many small pieces of files from their mappings (File::mapping) with one system call,
// instead of one call and one memory latency for each. The kernel copies, into a memory file: if a
// file is too short, the result is an errno, while a load of ours would be SIGBUS. One thread.
class ScatteredRead {
 public:
  static constexpr size_t kMaxPieces = 64;
  static constexpr uint64_t kMaxBytes = 256 << 10;

  struct Piece {
    const std::byte* from;  // in a mapping
    std::byte* to;
    uint64_t bytes;
  };

  ScatteredRead() = default;
  ScatteredRead(const ScatteredRead&) = delete;
  ScatteredRead& operator=(const ScatteredRead&) = delete;
  ~ScatteredRead() { close(); }

  // Copies all pieces. False: a file has become shorter or cannot be read, or there is no memory.
  // Then the bytes at `to` are undefined; reading the pieces one by one gives the error.
  // REQUIRED: at most kMaxPieces, of kMaxBytes together.
  bool copy(std::span<const Piece> pieces) noexcept;

 private:
  bool open() noexcept;
  void close() noexcept;

  os::Fd file_;  // in memory, kMaxBytes long
  std::byte* memory_ = nullptr;
  pid_t owner_ = 0;  // a forked child opens its own file
};

}  // namespace penstock
