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
// counted always. Where one piece in many has work for all of them, as a stream that makes 64
// elements and hands them out one by one, that work is a Part: timed, or not, for itself.
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

  // How the piece in work, or the part, is timed.
  class Timing {
    friend class StageClock;
    uint32_t weight_ = 0;  // those that it stands for; 0: it is not timed
    uint64_t reads_ = 0;
    uint64_t ns_ = 0;  // its own, without its parts'
  };

  // A piece of work from its begin to its end. What is not done Within some other stage is
  // `stage`'s. REQUIRED: not within another piece.
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

  // Work in a piece, or in another part, that does not come with each of them, of the stage that is
  // at work. Outside of pieces it is not counted, as nothing is there.
  class Part {
   public:
    // `clock` nullptr: nobody counts. `kind` nullptr: it is always timed, as it is to be where user
    // code is called, which may take long at any time.
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
  // What went by since the last look is the stage's that was at work.
  void charge() {
    const uint64_t now = now_();
    place(at_).ns.add_single_writer((now - mark_) * timing_.weight_);
    timing_.ns_ += now - mark_;
    mark_ = now;
    ++timing_.reads_;
  }

  // More often than so the clock is not looked at every time: it costs some 30 ns.
  static constexpr uint64_t kQuickReadNs = 2'000;

  Now now_;
  StageCounters* counters_ = nullptr;
  uint32_t at_ = 0;      // the stage at work
  bool within_ = false;  // a piece
  Timing timing_;        // of the piece in work, or the part
  uint64_t mark_ = 0;    // the last look
};

}  // namespace penstock
