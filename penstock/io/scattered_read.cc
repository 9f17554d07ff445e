#include "penstock/io/scattered_read.h"

#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "penstock/base/error.h"

namespace penstock {

bool ScatteredRead::copy(std::span<const Piece> pieces) noexcept {
  if (owner_ != getpid()) {
    close();
    if (!open()) return false;
  }
  if (memory_ == nullptr) return false;
  std::array<iovec, kMaxPieces> from;
  uint64_t bytes = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (uint64_t at = 0; at < pieces[i].bytes; at += 64) {
      __builtin_prefetch(pieces[i].from + at, 0, 2);
    }
    __builtin_prefetch(pieces[i].from + pieces[i].bytes - 1, 0, 2);
    from[i] = {const_cast<std::byte*>(pieces[i].from), pieces[i].bytes};
    bytes += pieces[i].bytes;
  }
  ssize_t copied;
  do {
    copied = pwritev(file_.get(), from.data(), static_cast<int>(pieces.size()), 0);
  } while (copied < 0 && errno == EINTR);
  if (copied != static_cast<ssize_t>(bytes)) return false;
  const std::byte* next = memory_;
  for (const Piece& piece : pieces) {
    std::memcpy(piece.to, next, piece.bytes);
    next += piece.bytes;
  }
  return true;
}

// Opens once: a refusal is final.
bool ScatteredRead::open() noexcept {
  owner_ = getpid();
  try {
    file_ = os::memory_file("penstock-read");
    os::resize_file(file_.get(), kMaxBytes);
  } catch (const Error&) {
    file_.reset();
    return false;
  }
  void* mapped = os::reserve_mapping(file_.get(), kMaxBytes, true);
  if (mapped == nullptr) return false;
  if (os::populate_write(mapped, kMaxBytes, file_.get()) !=
      0) {  // otherwise a lack of memory would be SIGBUS
    os::unmap(mapped, kMaxBytes);
    return false;
  }
  memory_ = static_cast<std::byte*>(mapped);
  return true;
}

void ScatteredRead::close() noexcept {
  if (memory_ != nullptr) os::unmap(memory_, kMaxBytes);
  memory_ = nullptr;
  file_.reset();
}

}  // namespace penstock
