#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace penstock {

// Memory for what is made on the way to a batch: handed out one piece after the other, taken back
// all at once, and kept for the next time. One thread.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // 64-byte aligned, contents undefined; until the next empty(). May throw std::bad_alloc.
  std::byte* take(size_t bytes);
  // The same for what user code may keep: it is used again only once nobody else holds it.
  std::shared_ptr<std::byte> take_shared(size_t bytes);
  void empty();

  size_t bytes() const;  // held, used or not

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  using Memory = std::unique_ptr<std::byte, Free>;
  static Memory allocate(size_t bytes);

  struct Piece {
    Memory memory;
    size_t bytes;
  };
  struct Shared {
    std::shared_ptr<std::byte> memory;
    size_t bytes;
    bool taken;  // since the last empty()
  };
  std::vector<Piece> pieces_;
  size_t piece_ = 0;  // the one in use
  size_t used_ = 0;   // of it
  std::vector<Shared> shared_;
};

}  // namespace penstock
