#include "penstock/pipeline/engine/consumer.h"

#include <utility>

#include "penstock/base/error.h"

namespace penstock {

uint64_t Consumer::begin_pass(bool resumed) {
  if (!resumed && (failed_ || engine_.amid())) policy_.leave_round();
  return engine_.begin_pass(resumed, failed_);
}

void Consumer::enter_round(uint64_t epoch) {
  round_ = epoch;
  failed_ = false;
  engine_.scheduler().begin_epoch();
}

bool Consumer::check_iteration(uint64_t serial) const {
  if (serial < latest_) {
    throw Error(Code::kInvalidArgument, "Loader",
                "this iteration was overtaken: a later one was begun before its end. A Loader has "
                "one place, so the batches that are missing here are the later one's, or were left "
                "out; zip and nested loops need a Loader for each iteration");
  }
  return serial == serial_;
}

bool Consumer::next() {
  Scheduler& scheduler = engine_.scheduler();
  TicketRing& ring = engine_.ring();
  while (round_) {
    policy_.check_open();
    if (engine_.has_held() && hand_out(engine_.take_held())) return true;
    switch (scheduler.poll(*round_)) {
      case Scheduler::Poll::kEpochEnd: {
        const uint64_t left = *round_;
        policy_.leave_round();
        round_ = engine_.round(left);
        if (round_) enter_round(*round_);
        continue;
      }
      case Scheduler::Poll::kFailed:
        policy_.check_open();
        policy_.raise(engine_.stream_failure());
        break;
      case Scheduler::Poll::kBatch: {
        if (engine_.remake_if_mismatched()) break;
        if (auto granule = scheduler.failed_granule()) {
          const TicketRing::Claim claim = ring.claim_in(scheduler.current_seq(), *granule, 0);
          policy_.raise(*claim.task, ticket_of(claim));
        }
        if (policy_.take()) return true;
        break;
      }
      case Scheduler::Poll::kWait:
        if (worker_ == nullptr) {
          policy_.wait();
        } else if (auto seq = scheduler.next_open()) {
          serve_entry(ring, 0, *seq, *worker_, &engine_.memory());
        }
        break;
    }
    if (worker_ != nullptr) policy_.attend();
  }
  return false;
}

bool Consumer::hand_out(PlanEngine::Taken taken) {
  if (taken.failure) policy_.raise(std::move(*taken.failure));
  if (!taken.item) return false;
  policy_.hand_out(*taken.item);
  return true;
}

void Consumer::fail() {
  engine_.scheduler().fail();
  round_.reset();
  failed_ = true;
}

void Consumer::seek(const Position& to, std::set<uint64_t> ahead) {
  engine_.scheduler().seek(to, std::move(ahead));
  round_.reset();
  failed_ = false;
}

void Consumer::restore(const LoaderState& state) {
  engine_.restore(state);
  ++serial_;
  round_.reset();
  failed_ = false;
}

}  // namespace penstock
