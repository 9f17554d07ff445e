#pragma once

#include <cstdint>

namespace penstock {

// Decides whether one worker or all workers make tickets, where workers share a lock (Python's).
// Two workers that need the lock for most of a tiny ticket pass it back and forth and are slower
// than one; two workers whose functions release the lock are faster. So both ways are tried for a
// while, and the better one is kept until the next trial. A pure function of its inputs, which the
// consumer passes whenever it waits: the batches delivered so far, and whether tickets are quick.
//
// States, with the workers that work in them:
//   - idle (all): tickets were never quick. Quick tickets -> one.
//   - one (one): the rate is measured. After kTryNs -> all.
//   - all (all): the rate is measured. After kTryNs -> settled, with the better way.
//   - settled (one): after kSettledNs -> one; after kAgainNs already if its tickets are not quick.
//   - settled (all): not better any more -> settled (one); after kSettledNs, if quick -> one.
//   - in vain (all): the consumer waited too long for the one worker. After kInVainNs -> one.
class LockTrial {
 public:
  static constexpr uint64_t kTryNs = 20'000'000;
  static constexpr uint64_t kSettledNs = 2'000'000'000;
  static constexpr uint64_t kAgainNs = 200'000'000;
  static constexpr uint64_t kInVainNs = 100'000'000;
  // All workers must be faster than one by this factor, because they take other cores' time.
  static constexpr double kBetter = 1.25;

  // Whether all workers should work from now on.
  bool all(uint64_t now_ns, uint64_t done, bool quick) {
    const uint64_t time = now_ns - begun_ns_;
    const double rate = static_cast<double>(done - done_) / static_cast<double>(time);
    switch (state_) {
      case State::kIdle:
        if (quick) begin(State::kOne, now_ns, done);
        break;
      case State::kOne:
        if (time > kGap * kTryNs) {
          begin(State::kOne, now_ns, done);  // too long for a measurement: begin again
        } else if (time >= kTryNs) {
          one_rate_ = rate;
          begin(State::kAll, now_ns, done);
        }
        break;
      case State::kAll:
        if (time > kGap * kTryNs) {
          begin(State::kOne, now_ns, done);
        } else if (time >= kTryNs) {
          settle(rate > kBetter * one_rate_, now_ns, done);
        }
        break;
      case State::kSettled:
        if (all_ ? time >= kSettledNs && quick : time >= (quick ? kSettledNs : kAgainNs)) {
          begin(State::kOne, now_ns, done);
        } else if (all_) {
          watch(now_ns, done);
        }
        break;
      case State::kWaitedTooLong:
        if (time >= kInVainNs) begin(State::kOne, now_ns, done);
        break;
    }
    return all_;
  }

  // One worker took so long that others may be needed.
  void waited_too_long(uint64_t now_ns) {
    state_ = State::kWaitedTooLong;
    all_ = true;
    begun_ns_ = now_ns;
  }

 private:
  enum class State { kIdle, kOne, kAll, kSettled, kWaitedTooLong };
  static constexpr uint64_t kGap = 4;

  void begin(State state, uint64_t now_ns, uint64_t done) {
    state_ = state;
    all_ = state == State::kAll;
    begun_ns_ = now_ns;
    done_ = done;
  }
  void settle(bool all, uint64_t now_ns, uint64_t done) {
    state_ = State::kSettled;
    all_ = all;
    begun_ns_ = watched_ns_ = now_ns;
    done_ = done;
  }
  // The workers may start to hinder each other only later.
  void watch(uint64_t now_ns, uint64_t done) {
    const uint64_t time = now_ns - watched_ns_;
    if (time < kTryNs) return;
    const double rate = static_cast<double>(done - done_) / static_cast<double>(time);
    if (time <= kGap * kTryNs && rate <= kBetter * one_rate_) return settle(false, now_ns, done);
    watched_ns_ = now_ns;
    done_ = done;
  }

  State state_ = State::kIdle;
  bool all_ = true;
  uint64_t begun_ns_ = 0, watched_ns_ = 0, done_ = 0;
  double one_rate_ = 0;
};

}  // namespace penstock
