#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "penstock/pipeline/element/stream_memory.h"

namespace penstock {

// A bump allocator for the intermediate results of a batch. empty() takes all pieces back at once
// and keeps the memory for the next batch. One thread.
class Scratch {
 public:
  // Owners of memory outside the scratch with the same lifetime as scratch memory: results of
  // functions, a file's buffer. They are released by empty() at the latest.
  class Kept {
   public:
    explicit Kept(Scratch& scratch) : scratch_(scratch), place_(scratch.kept_.size()) {
      scratch.kept_.push_back(this);
    }
    ~Kept() {
      scratch_.kept_[place_] = scratch_.kept_.back();
      scratch_.kept_[place_]->place_ = place_;
      scratch_.kept_.pop_back();
    }
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;

    void add(std::shared_ptr<void> owner, uint64_t bytes) {
      owners_.push_back(std::move(owner));
      bytes_ += bytes;
    }
    void add(const Kept& other) {
      owners_.insert(owners_.end(), other.owners_.begin(), other.owners_.end());
      bytes_ += other.bytes_;
    }
    void release() {
      owners_.clear();
      bytes_ = 0;
    }
    uint64_t bytes() const { return bytes_; }

   private:
    Scratch& scratch_;
    size_t place_;
    std::vector<std::shared_ptr<void>> owners_;
    uint64_t bytes_ = 0;
  };

  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // 64-byte aligned, contents undefined, valid until the next empty(). May throw std::bad_alloc.
  std::byte* take(size_t bytes);
  // Releases all Kept owners. Also frees memory that has been unused for some time.
  void empty() noexcept;
  // Like empty(), and frees all memory.
  void free_all() noexcept;

  // Counts the held memory in `memory` from now on, which must outlive the scratch; nullptr: not
  // counted.
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
  size_t piece_ = 0;      // index of the piece in use
  size_t used_ = 0;       // bytes of that piece
  size_t taken_ = 0;      // bytes of all pieces
  size_t most_used_ = 0;  // maximum of taken_ over the last emptied_ calls of empty()
  uint32_t emptied_ = 0;
  StreamMemory* memory_ = nullptr;
  StreamMemory::Part part_;
  std::vector<Kept*> kept_;
};

}  // namespace penstock
