#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "penstock/memory/byte_budget.h"

namespace penstock {

// Counts the input elements that the stages of one stream hold, in bytes, and bounds how much each
// input may pull at a time. The bound per input shrinks as the number of inputs grows. Elements
// that stages hold back by design (HeldBack) are not counted.
//
// Threads: bytes() and copied() from any; everything else from the thread that reads the stream.
class StreamMemory {
 public:
  static constexpr uint64_t kMaxChunk = 1 << 20;  // of one input; a single element may be larger

  // `total`: the bytes of the loader's budget. UINT64_MAX: no bound. `holder`: also has the bytes
  // in the budget; must outlive this and all Parts. nullptr: no budget counts them.
  explicit StreamMemory(uint64_t total, ByteBudget::Holder* holder = nullptr)
      : pulled_(total / kPulled), holder_(total == UINT64_MAX ? nullptr : holder) {
    divide(0);
  }
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;

  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

  // The largest value of bytes() since the last call.
  uint64_t take_peak() { return std::exchange(peak_, bytes()); }

  // Bytes of elements that were copied on their way into tickets' inputs. count_copy: for the
  // thread that reads the stream.
  void count_copy(uint64_t bytes) { copied_.store(copied() + bytes, std::memory_order_relaxed); }
  uint64_t copied() const { return copied_.load(std::memory_order_relaxed); }

  // When tight, readers free their memory after each call.
  bool tight() const { return bytes() > pulled_; }
  // The bytes that an input pulls at a time. At least one element is pulled.
  uint64_t chunk_bytes() const { return chunk_bytes_; }

  // The bytes that one holder accounts for. Without a StreamMemory nothing is counted.
  class Part {
   public:
    Part() = default;
    explicit Part(StreamMemory* all) : all_(all) {}
    ~Part() { is(0); }
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

    void is(uint64_t bytes) {
      if (all_ != nullptr) all_->change(std::exchange(bytes_, bytes), bytes);
    }
    void count_in(StreamMemory* all, uint64_t bytes) {
      is(0);
      all_ = all;
      is(bytes);
    }

   private:
    StreamMemory* all_ = nullptr;
    uint64_t bytes_ = 0;
  };

  // An open input of a stage. Until its first elements are there, the budget counts one of the
  // largest elements so far for it.
  class Input {
   public:
    explicit Input(StreamMemory* all) : all_(all) {
      if (all_ == nullptr) return;
      all_->divide(++all_->inputs_);
      all_->expect(all_->unread_ + 1, all_->element_bytes_);
    }
    ~Input() {
      if (all_ == nullptr) return;
      read();
      all_->divide(--all_->inputs_);
    }
    Input(const Input&) = delete;
    Input& operator=(const Input&) = delete;

    // Its first elements were read, or it ended.
    void read() {
      if (all_ == nullptr || std::exchange(read_, true)) return;
      all_->expect(all_->unread_ - 1, all_->element_bytes_);
    }

   private:
    StreamMemory* all_;
    bool read_ = false;
  };
  // The stream has an element of this size.
  void saw_element(uint64_t bytes) {
    if (bytes > element_bytes_) expect(unread_, bytes);
  }

  // Wraps `owner`; its bytes are counted until the result is released.
  std::shared_ptr<void> counted(std::shared_ptr<void> owner, uint64_t bytes) {
    struct Counted {
      Part part;
      std::shared_ptr<void> owned;
    };
    auto counted = std::make_shared<Counted>();
    counted->part.count_in(this, bytes);
    counted->owned = std::move(owner);
    return counted;
  }

 private:
  // Only one thread writes at a time, so no read-modify-write operation is needed.
  void change(uint64_t was, uint64_t is) {
    if (was == is) return;
    bytes_.store(bytes() - was + is, std::memory_order_relaxed);
    peak_ = std::max(peak_, bytes());
    hold(was, is);
  }
  void hold(uint64_t was, uint64_t is) {
    if (holder_ == nullptr) return;
    if (is > was) holder_->add(is - was);
    if (is < was) holder_->give_back(was - is);
  }
  void expect(uint64_t unread, uint64_t element_bytes) {
    hold(unread_ * element_bytes_, unread * element_bytes);
    unread_ = unread;
    element_bytes_ = element_bytes;
  }
  void divide(uint64_t inputs) {
    chunk_bytes_ = std::min(kMaxChunk, pulled_ / std::max<uint64_t>(inputs, 1));
  }

  // All inputs together pull this part of the budget at a time.
  static constexpr uint64_t kPulled = 8;

  const uint64_t pulled_;
  ByteBudget::Holder* const holder_;
  std::atomic<uint64_t> bytes_ = 0, copied_ = 0;
  uint64_t inputs_ = 0, chunk_bytes_ = 0, peak_ = 0;
  uint64_t unread_ = 0, element_bytes_ = 0;  // inputs without elements; of the largest element
};

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
