#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "penstock/base/clock.h"
#include "penstock/observe/counters.h"

namespace penstock {

// Maps built stages to the indices of their titles in the plan. Filled at build, then immutable:
// any thread.
class StageNumbers {
 public:
  // If a node passes on its input's stage, the stage keeps its first number. nullptr is ignored.
  void add(const void* stage, uint32_t number) {
    if (stage != nullptr) numbers_.try_emplace(stage, number);
  }
  // Nothing: the stage belongs to a plan that was opened at run time. Its time counts for the stage
  // that opened the plan.
  std::optional<uint32_t> find(const void* stage) const {
    auto found = numbers_.find(stage);
    return found == numbers_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::unordered_map<const void*, uint32_t> numbers_;
};

// Measures the time of each stage of a chain, without that of its inputs. One thread, the only
// writer of the counters.
//
// Reading the clock for every call would slow down cheap stages noticeably. So only one in kOneIn
// quick pieces of work is timed, and weighted by kOneIn; rows are always counted. Work that occurs
// in only a few pieces is a Part, which is sampled by itself. Example: a stream that makes 64
// elements at once and then delivers them one by one.
class StageClock {
 public:
  using Now = uint64_t (*)();
  // Not a power of two, so that the sampled chunk is not the same in every batch.
  static constexpr uint32_t kOneIn = 17;

  explicit StageClock(Now now = now_ns) : now_(now) {}
  StageClock(const StageClock&) = delete;
  StageClock& operator=(const StageClock&) = delete;

  // REQUIRED before anything is counted; not within a piece.
  void count_into(StageCounters& counters) { counters_ = &counters; }
  void count(uint32_t stage, uint64_t rows) { place(stage).rows.add_single_writer(rows); }

  // The history of one kind of piece (such as the chunks of a chain): whether they are quick.
  class Kind {
    friend class StageClock;
    uint32_t untimed_ = 0;  // since the last timed one
    bool quick_ = false;
  };

  // Timing of the current piece or part.
  class Timing {
    friend class StageClock;
    uint32_t weight_ = 0;  // how many it stands for; 0: not timed
    uint64_t reads_ = 0;
    uint64_t ns_ = 0;  // without its parts
  };

  // A piece of work from begin to end. Time that is not Within another stage counts for `stage`.
  // REQUIRED: not within another piece.
  class Piece {
   public:
    Piece(StageClock& clock, Kind& kind, uint32_t stage) : clock_(clock), kind_(kind) {
      clock_.at_ = stage;
      clock_.within_ = true;
      clock_.begin(&kind_);
    }
    ~Piece() {
      clock_.end(&kind_);
      clock_.within_ = false;
    }
    Piece(const Piece&) = delete;
    Piece& operator=(const Piece&) = delete;

   private:
    StageClock& clock_;
    Kind& kind_;
  };

  // Work of the current stage that occurs only in some pieces or parts. Not counted outside of
  // pieces.
  class Part {
   public:
    // `clock` nullptr: nothing is counted. `kind` nullptr: always timed. Use that for calls of user
    // code, which may take long at any time.
    explicit Part(StageClock* clock, Kind* kind = nullptr)
        : clock_(clock != nullptr && clock->within_ ? clock : nullptr), kind_(kind) {
      if (clock_ == nullptr) return;
      clock_->pause();
      outer_ = clock_->timing_;
      clock_->begin(kind_);
    }
    ~Part() {
      if (clock_ == nullptr) return;
      clock_->end(kind_);
      clock_->timing_ = outer_;
      clock_->go_on();
    }
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

   private:
    StageClock* clock_;
    Kind* kind_;
    Timing outer_;
  };

  // A call into a stage, from entry to return.
  class Within {
   public:
    Within(StageClock& clock, uint32_t stage) : clock_(clock), outer_(clock.go_to(stage)) {}
    ~Within() { clock_.go_to(outer_); }
    Within(const Within&) = delete;
    Within& operator=(const Within&) = delete;

   private:
    StageClock& clock_;
    uint32_t outer_;
  };

  // Waiting for other threads: this time counts for no stage.
  class Waiting {
   public:
    explicit Waiting(StageClock& clock) : clock_(clock) { clock_.pause(); }
    ~Waiting() { clock_.go_on(); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    StageClock& clock_;
  };

 private:
  auto place(uint32_t stage) -> StageCounters::value_type& {
    return (*counters_)[stage < kStages ? stage : kStages - 1];
  }
  void begin(Kind* kind) {
    timing_ = {};
    const bool quick = kind != nullptr && kind->quick_;
    if (quick && ++kind->untimed_ < kOneIn) return;
    if (kind != nullptr) kind->untimed_ = 0;
    timing_.weight_ = quick ? kOneIn : 1;
    mark_ = now_();
  }
  void end(Kind* kind) {
    if (timing_.weight_ == 0) return;
    charge();
    if (kind != nullptr) kind->quick_ = timing_.ns_ < timing_.reads_ * kQuickReadNs;
    timing_.weight_ = 0;
  }
  void pause() {
    if (timing_.weight_ != 0) charge();
  }
  void go_on() {
    if (timing_.weight_ != 0) mark_ = now_();
  }
  uint32_t go_to(uint32_t stage) {
    if (timing_.weight_ != 0) charge();
    const uint32_t outer = at_;
    at_ = stage;
    return outer;
  }
  // Adds the time since the last reading to the current stage.
  void charge() {
    const uint64_t now = now_();
    place(at_).ns.add_single_writer((now - mark_) * timing_.weight_);
    timing_.ns_ += now - mark_;
    mark_ = now;
    ++timing_.reads_;
  }

  // If the clock is read more often than this, only samples are timed: a reading costs about 30 ns.
  static constexpr uint64_t kQuickReadNs = 2'000;

  Now now_;
  StageCounters* counters_ = nullptr;
  uint32_t at_ = 0;      // the current stage
  bool within_ = false;  // within a piece
  Timing timing_;        // of the current piece or part
  uint64_t mark_ = 0;    // the last reading
};

}  // namespace penstock
