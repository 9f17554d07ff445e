#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <utility>

namespace penstock {

// What sections have of the loader's budget, all together: elements that are made ahead, or are
// being made, and those that were taken and are in use. Each may always have the one that is asked
// for. Beyond that there is some room, of which none has more than its share, for it may not be
// asked again, or one element. Where that is too much for all it goes to those that have waited
// longest: of sections that are asked in turn to those whose turn comes next.
//
// | a section | meaning                                    | moved by, to
// | content   | it has an element, or has no more, or was  | its last one is taken and there is no
// |           | not asked for one yet                      | room for a next one, or it is not in
// |           |                                            | use any more -> waiting
// | waiting   | in line for room                           | it is asked; room(), when it is the
// |           |                                            | first; begin, load -> content
//
// Threads: over() is any's, everything else the cursor's.
class SectionBudget {
 public:
  SectionBudget(uint64_t max_bytes, size_t sections)
      : max_bytes_(max_bytes), sections_(std::max<size_t>(sections, 1)) {}
  SectionBudget(const SectionBudget&) = delete;
  SectionBudget& operator=(const SectionBudget&) = delete;

  uint64_t max_bytes() const { return max_bytes_; }
  uint64_t bytes() const { return bytes_; }
  // Beyond max_bytes(), because each may have one.
  uint64_t over() const { return over_.load(std::memory_order_relaxed); }
  // What others leave of max_bytes(); until it is said, all of it.
  void set_room(std::function<uint64_t()> room) { room_ = std::move(room); }

  // Of the largest element that came out of a section: what one takes that was not seen yet.
  uint64_t element_bytes() const { return element_bytes_; }
  void saw_element(uint64_t bytes) { element_bytes_ = std::max(element_bytes_, bytes); }

  // One section's part.
  class Part {
   public:
    // `make_ahead`: has it make elements if there is room, and says is() and wait().
    Part(SectionBudget& all, std::function<void()> make_ahead)
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
    // Bytes that it may have made and in the making, as others are now, of elements that take
    // `each`; beside `taken`.
    uint64_t most(uint64_t each, uint64_t taken) const {
      if (!all_.waiting_.empty() && all_.waiting_.front() != this) return 0;
      const uint64_t room = all_.room(), others = all_.bytes_ - bytes_;
      if (room <= others + taken) return 0;
      return std::min(room - others - taken, std::max(share(), each));
    }
    uint64_t share() const { return all_.room() / all_.sections_; }
    // Whether so much would have room if others had nothing: what would not is waited for in vain.
    bool may_have(uint64_t bytes) const { return bytes <= all_.room(); }
    void wait(bool waits) {
      if (waits == std::exchange(waits_, waits)) return;
      if (waits) {
        all_.waiting_.push_back(this);
      } else {
        std::erase(all_.waiting_, this);
      }
    }

   private:
    friend SectionBudget;
    SectionBudget& all_;
    const std::function<void()> make_ahead_;
    uint64_t bytes_ = 0;
    bool waits_ = false;
  };

  // Something was taken, or is not in use any more. Not while a section reads what its elements are
  // made of, where it may be another one's turn (Reading).
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
    explicit Reading(SectionBudget& all) : all_(all) { ++all_.reading_; }
    ~Reading() { --all_.reading_; }
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

   private:
    SectionBudget& all_;
  };

 private:
  uint64_t room() const { return room_ == nullptr ? max_bytes_ : std::min(max_bytes_, room_()); }

  const uint64_t max_bytes_;
  const size_t sections_;
  std::function<uint64_t()> room_;
  std::atomic<uint64_t> over_ = 0;
  uint64_t bytes_ = 0;
  uint64_t element_bytes_ = 0;
  uint32_t reading_ = 0;
  std::deque<Part*> waiting_;
};

}  // namespace penstock
