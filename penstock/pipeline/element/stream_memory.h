#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace penstock {

// Counts the input elements that the stages of one stream hold, in bytes, and bounds how much each
// input may pull at a time. The bound per input shrinks as the number of inputs grows. Elements
// that stages hold back by design (HeldBack) are not counted.
//
// Threads: bytes() from any; everything else from the thread that reads the stream.
class StreamMemory {
 public:
  static constexpr uint64_t kMaxChunk = 1 << 20;  // of one input; a single element may be larger

  // `total`: the bytes of the loader's budget. UINT64_MAX: no bound.
  explicit StreamMemory(uint64_t total) : pulled_(total / kPulled) { divide(0); }
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;

  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

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
      if (all_ != nullptr) add(all_->bytes_, std::exchange(bytes_, bytes), bytes);
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

  // An open input of a stage.
  class Input {
   public:
    explicit Input(StreamMemory* all) : all_(all) {
      if (all_ != nullptr) all_->divide(++all_->inputs_);
    }
    ~Input() {
      if (all_ != nullptr) all_->divide(--all_->inputs_);
    }
    Input(const Input&) = delete;
    Input& operator=(const Input&) = delete;

   private:
    StreamMemory* all_;
  };

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
  static void add(std::atomic<uint64_t>& sum, uint64_t was, uint64_t is) {
    if (was != is)
      sum.store(sum.load(std::memory_order_relaxed) - was + is, std::memory_order_relaxed);
  }
  void divide(uint64_t inputs) {
    chunk_bytes_ = std::min(kMaxChunk, pulled_ / std::max<uint64_t>(inputs, 1));
  }

  // All inputs together pull this part of the budget at a time.
  static constexpr uint64_t kPulled = 8;

  const uint64_t pulled_;
  std::atomic<uint64_t> bytes_ = 0;
  uint64_t inputs_ = 0, chunk_bytes_ = 0;
};

}  // namespace penstock
