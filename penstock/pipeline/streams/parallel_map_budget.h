#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <utility>

namespace penstock {

// The part of the loader's budget that all parallel maps share: for elements that are made ahead or
// being made, and for those that were taken and are in use. Each map may always have the element
// that it is asked for. Beyond that, a map gets at most its share, or one element, because it may
// not be asked again. If there is not enough for all maps, those that waited longest get space
// first: where maps are asked in turn, these are the ones asked next.
//
// States of a parallel map:
//   - content: it has an element, or has no more, or was not asked for one yet. When its last
//     element is taken, or is not in use any more, and there is no space for a next one ->
//     waiting.
//   - waiting: in line for space. When it is asked, or is the first in line and there is space, or
//     after begin() or load() -> content.
//
// Threads: over() from any; everything else from the stream reader's thread.
class ParallelMapBudget {
 public:
  ParallelMapBudget(uint64_t max_bytes, size_t parallel_maps)
      : max_bytes_(max_bytes), maps_(std::max<size_t>(parallel_maps, 1)) {}
  ParallelMapBudget(const ParallelMapBudget&) = delete;
  ParallelMapBudget& operator=(const ParallelMapBudget&) = delete;

  uint64_t max_bytes() const { return max_bytes_; }
  uint64_t bytes() const { return bytes_; }
  // Bytes beyond max_bytes(), in use because each map may always have one element.
  uint64_t over() const { return over_.load(std::memory_order_relaxed); }
  // `space` returns what other holders leave of max_bytes(). Without this call: all of it.
  void set_space(std::function<uint64_t()> space) { space_ = std::move(space); }

  // The largest element of any parallel map so far: the estimate for elements not made yet.
  uint64_t element_bytes() const { return element_bytes_; }
  void saw_element(uint64_t bytes) { element_bytes_ = std::max(element_bytes_, bytes); }

  // One parallel map's part.
  class Part {
   public:
    // `make_ahead`: makes the map make elements if there is space, and calls is() and wait().
    Part(ParallelMapBudget& all, std::function<void()> make_ahead)
        : all_(all), make_ahead_(std::move(make_ahead)) {}
    ~Part() {
      is(0);
      wait(false);
    }
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

    void is(uint64_t bytes) {
      all_.bytes_ += bytes - bytes_;
      bytes_ = bytes;
      all_.over_.store(all_.bytes_ > all_.max_bytes_ ? all_.bytes_ - all_.max_bytes_ : 0,
                       std::memory_order_relaxed);
    }
    // Bytes that this map may have made and in the making beside `taken`, for elements of `each`
    // bytes, given what the other maps use now.
    uint64_t most(uint64_t each, uint64_t taken) const {
      if (!all_.waiting_.empty() && all_.waiting_.front() != this) return 0;
      const uint64_t space = all_.space(), others = all_.bytes_ - bytes_;
      if (space <= others + taken) return 0;
      return std::min(space - others - taken, std::max(share(), each));
    }
    uint64_t share() const { return all_.space() / all_.maps_; }
    // Whether `bytes` fit if the other maps use nothing. If not, waiting would not help.
    bool may_have(uint64_t bytes) const { return bytes <= all_.space(); }
    void wait(bool waits) {
      if (waits == std::exchange(waits_, waits)) return;
      if (waits) {
        all_.waiting_.push_back(this);
      } else {
        std::erase(all_.waiting_, this);
      }
    }

   private:
    friend ParallelMapBudget;
    ParallelMapBudget& all_;
    const std::function<void()> make_ahead_;
    uint64_t bytes_ = 0;
    bool waits_ = false;
  };

  // Call after an element was taken or is not in use any more. Does nothing while a parallel map
  // reads its input (Reading), which may be another map's turn.
  void share_out() {
    if (reading_ != 0) return;
    const Reading reading(*this);
    while (!waiting_.empty()) {
      Part* const first = waiting_.front();
      first->make_ahead_();
      if (first->waits_) return;
    }
  }
  class Reading {
   public:
    explicit Reading(ParallelMapBudget& all) : all_(all) { ++all_.reading_; }
    ~Reading() { --all_.reading_; }
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

   private:
    ParallelMapBudget& all_;
  };

 private:
  uint64_t space() const { return space_ == nullptr ? max_bytes_ : std::min(max_bytes_, space_()); }

  const uint64_t max_bytes_;
  const size_t maps_;
  std::function<uint64_t()> space_;
  std::atomic<uint64_t> over_ = 0;
  uint64_t bytes_ = 0;
  uint64_t element_bytes_ = 0;
  uint32_t reading_ = 0;
  std::deque<Part*> waiting_;
};

}  // namespace penstock
