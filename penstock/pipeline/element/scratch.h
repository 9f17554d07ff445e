#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "penstock/pipeline/element/stream_memory.h"

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
  // What is much more than was used for some time goes.
  void empty();
  // The same, and nothing is kept for the next time.
  void give_back();

  // From now on what it holds is counted there, which outlives it; nullptr: nowhere.
  void count_in(StreamMemory* memory) {
    memory_ = memory;
    part_.count_in(memory, bytes());
  }
  StreamMemory* memory() const { return memory_; }

  size_t bytes() const;                   // held, used or not
  size_t used() const { return taken_; }  // since the last empty()

 private:
  struct Free {
    size_t bytes;
    void operator()(std::byte* memory) const;
  };
  using Memory = std::unique_ptr<std::byte, Free>;
  static Memory allocate(size_t bytes);

  struct Piece {
    Memory memory;
    size_t bytes;
  };
  std::vector<Piece> pieces_;
  size_t piece_ = 0;      // the one in use
  size_t used_ = 0;       // of it
  size_t taken_ = 0;      // of all
  size_t most_used_ = 0;  // the last times, of which there were
  uint32_t emptied_ = 0;
  StreamMemory* memory_ = nullptr;
  StreamMemory::Part part_;
};

}  // namespace penstock
