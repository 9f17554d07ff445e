#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace penstock {

// What the stages of one cursor's stream have in memory of their inputs' elements, and how much of
// it each of these may pull at a time: where there are many of them, less. What stages hold back
// because they were told to (HeldBack) is not in it.
//
// Threads: bytes() is any's; everything else belongs to whoever is in the stream.
class StreamMemory {
 public:
  static constexpr uint64_t kMostChunk = 1 << 20;  // of one input, but for one element of any size

  // `share`: bytes of the loader's budget that are for it, and for parcels; UINT64_MAX: no bound.
  explicit StreamMemory(uint64_t share) : share_(share) { divide(0); }
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;

  uint64_t share() const { return share_; }
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

  // Half of the share is for parcels: nobody keeps memory only for the next time.
  bool tight() const { return bytes() > share_ / 2; }
  // Bytes that an input pulls at a time, or else one element.
  uint64_t chunk_bytes() const { return chunk_bytes_; }

  // So many bytes of one holder. Nothing is counted where there is no StreamMemory.
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

  // An input of some stage, as long as it is open.
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

  // `owner`, counted as long as somebody holds what is returned.
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
  // One thread writes at a time.
  static void add(std::atomic<uint64_t>& sum, uint64_t was, uint64_t is) {
    if (was != is)
      sum.store(sum.load(std::memory_order_relaxed) - was + is, std::memory_order_relaxed);
  }
  void divide(uint64_t inputs) {
    chunk_bytes_ = std::min(kMostChunk, share_ / 2 / std::max<uint64_t>(inputs, 1));
  }

  const uint64_t share_;
  std::atomic<uint64_t> bytes_ = 0;
  uint64_t inputs_ = 0, chunk_bytes_ = 0;
};

}  // namespace penstock
