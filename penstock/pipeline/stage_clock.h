#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "penstock/base/clock.h"
#include "penstock/observe/counters.h"

namespace penstock {

// Which place of a plan's titles each built stage has. Filled at build, then immutable: any thread.
class StageNumbers {
 public:
  // A stage that a node hands on as it is keeps its first number. nullptr: there is none.
  void add(const void* stage, uint32_t number) {
    if (stage != nullptr) numbers_.try_emplace(stage, number);
  }
  // Nothing: of a plan that was opened while another one runs. It counts as the stage that did so.
  std::optional<uint32_t> find(const void* stage) const {
    auto found = numbers_.find(stage);
    return found == numbers_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::unordered_map<const void*, uint32_t> numbers_;
};

// Where the time of a chain goes: each stage's own, without that of its inputs. One thread, which
// is the only one that writes into the counters.
//
// Reading the clock around every stage would be a noticeable part of stages that do little. So of
// pieces of work that are quickly done one in kOneIn is timed, and stands for the others; rows are
// counted always.
class StageClock {
 public:
  using Now = uint64_t (*)();
  // No power of two, so that it is not the same chunk of every batch.
  static constexpr uint32_t kOneIn = 17;

  explicit StageClock(Now now = now_ns) : now_(now) {}
  StageClock(const StageClock&) = delete;
  StageClock& operator=(const StageClock&) = delete;

  // REQUIRED before anything is counted; not within a piece.
  void count_into(StageCounters& counters) { counters_ = &counters; }
  void count(uint32_t stage, uint64_t rows) { place(stage).rows.add_single_writer(rows); }

  // What pieces of one kind (chunks of a chain, say) were like so far.
  class Kind {
    friend class StageClock;
    uint32_t untimed_ = 0;  // since the last that was timed
    bool quick_ = false;
  };

  // A piece of work from its begin to its end. What is not done Within some other stage is
  // `stage`'s. REQUIRED: not within another piece.
  class Piece {
   public:
    Piece(StageClock& clock, Kind& kind, uint32_t stage) : clock_(clock), kind_(kind) {
      clock_.begin(kind_, stage);
    }
    ~Piece() { clock_.end(kind_); }
    Piece(const Piece&) = delete;
    Piece& operator=(const Piece&) = delete;

   private:
    StageClock& clock_;
    Kind& kind_;
  };

  // A stage at work, from one of its calls to the return.
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

  // Somebody else is waited for: what goes by meanwhile is no stage's.
  class Waiting {
   public:
    explicit Waiting(StageClock& clock) : clock_(clock) {
      if (clock_.weight_ != 0) clock_.charge();
    }
    ~Waiting() {
      if (clock_.weight_ != 0) clock_.mark_ = clock_.now_();
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    StageClock& clock_;
  };

 private:
  auto place(uint32_t stage) -> StageCounters::value_type& {
    return (*counters_)[stage < kStages ? stage : kStages - 1];
  }
  void begin(Kind& kind, uint32_t stage) {
    at_ = stage;
    if (kind.quick_ && ++kind.untimed_ < kOneIn) return;
    weight_ = kind.quick_ ? kOneIn : 1;
    kind.untimed_ = 0;
    reads_ = 0;
    mark_ = begin_ = now_();
  }
  void end(Kind& kind) {
    if (weight_ == 0) return;
    charge();
    kind.quick_ = mark_ - begin_ < reads_ * kQuickReadNs;
    weight_ = 0;
  }
  uint32_t go_to(uint32_t stage) {
    if (weight_ != 0) charge();
    const uint32_t outer = at_;
    at_ = stage;
    return outer;
  }
  // What went by since the last look is the stage's that was at work.
  void charge() {
    const uint64_t now = now_();
    place(at_).ns.add_single_writer((now - mark_) * weight_);
    mark_ = now;
    ++reads_;
  }

  // More often than so the clock is not looked at every time: it costs some 30 ns.
  static constexpr uint64_t kQuickReadNs = 2'000;

  Now now_;
  StageCounters* counters_ = nullptr;
  uint32_t at_ = 0;      // the stage at work
  uint32_t weight_ = 0;  // pieces that the one in work stands for; 0: it is not timed
  uint64_t reads_ = 0;
  uint64_t mark_ = 0, begin_ = 0;
};

}  // namespace penstock
