#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <utility>

namespace penstock {

// The part of the loader's budget that all parallel maps share. It covers pending and finished
// elements, and taken elements that are still in use. Each map may always have the one element that
// the stream reader asks it for. Beyond that a map gets at most its share, or one element, because
// it may not be asked again. If the budget is short, maps that have waited longest get space first:
// if maps are asked in turn, these are asked next.
//
// States of a parallel map:
// - content: it has an element, or has no more, or was not asked for one yet. After its last
//   element was taken or released, and there is no space for another -> waiting.
// - waiting: queued for space. When it is asked, or is first in the queue and there is space, or
//   after begin() or load() -> content.
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
  // Bytes in use beyond max_bytes(). They occur because each map may always have one element.
  uint64_t over() const { return over_.load(std::memory_order_relaxed); }
  // `space` returns the part of max_bytes() that other holders leave. Without this call:
  // max_bytes().
  void set_space(std::function<uint64_t()> space) { space_ = std::move(space); }

  // The largest element of any parallel map so far. It is the estimate for maps that have made
  // none.
  uint64_t element_bytes() const { return element_bytes_; }
  void saw_element(uint64_t bytes) { element_bytes_ = std::max(element_bytes_, bytes); }

  // The bytes that one parallel map uses.
  class Part {
   public:
    // `make_ahead`: starts further elements of the map if there is space, and calls is() and
    // wait().
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
    // The bytes that this map may have for finished and pending elements beside `taken`, given the
    // current use of the other maps. `each`: bytes of one element.
    uint64_t most(uint64_t each, uint64_t taken) const {
      if (!all_.waiting_.empty() && all_.waiting_.front() != this) return 0;
      const uint64_t space = all_.space(), others = all_.bytes_ - bytes_;
      if (space <= others + taken) return 0;
      return std::min(space - others - taken, std::max(share(), each));
    }
    uint64_t share() const { return all_.space() / all_.maps_; }
    // Whether `bytes` would fit if the other maps used nothing. If not, the map does not wait.
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

  // Gives space to waiting maps. Call it after an element was taken or released. Does nothing while
  // a parallel map reads its input (Reading), because that input may be another parallel map.
  void grant_space() {
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
