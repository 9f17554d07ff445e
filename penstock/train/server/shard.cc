#include "penstock/train/server/shard.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"

namespace penstock::train {
namespace {

Error refuse_push(const std::string& why) { return Error(Code::kInvalidArgument, "push", why); }

}  // namespace

void check(const ServerMode& mode) {
  auto wrong = [](const std::string& why) {
    return Error(Code::kInvalidArgument, "ParameterServer", why);
  };
  if (!(mode.lease_s > 0 && mode.lease_s <= 1e9)) {
    throw wrong("lease is " + std::to_string(mode.lease_s) + " seconds; give more than 0");
  }
  if (!std::isfinite(mode.compensation) || mode.compensation < 0) {
    throw wrong("delay_compensation must be 0 or more");
  }
  if (mode.compensation > 0 && mode.staleness == 0u) {
    throw wrong("delay_compensation in synchronous mode: there is no delay");
  }
  if (mode.workers > kMostWorkers) {
    throw wrong("workers is " + std::to_string(mode.workers) + "; there can be " +
                std::to_string(kMostWorkers));
  }
}

// While a worker is in push() its lease does not run: it is the shard that lets it wait.
class Shard::Inside {
 public:
  Inside(Shard& shard, uint64_t worker) : shard_(shard), worker_(worker) {
    ++shard_.members_.at(worker).inside;
  }
  ~Inside() {
    const auto found = shard_.members_.find(worker_);
    if (found == shard_.members_.end()) return;  // it left meanwhile
    --found->second.inside;
    shard_.renew(found->second);
    if (found->second.gone && found->second.inside == 0) shard_.forget(found);
    shard_.changed_.notify_all();  // its lease runs again
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  Shard& shard_;
  const uint64_t worker_;
};

Shard::Shard(std::shared_ptr<ShardMemory> memory, Optimizer optimizer, const ServerMode& mode)
    : memory_(std::move(memory)),
      optimizer_(std::move(optimizer)),
      mode_(mode),
      lease_ns_(static_cast<uint64_t>(mode.lease_s * 1e9)),
      compensation_(static_cast<float>(mode.compensation)),
      began_ns_(now_ns()) {
  check(mode);
  if (memory_->shape().states != optimizer_.state_slabs()) {
    throw Error(Code::kInvalidArgument, "shard", "this memory is of another optimizer");
  }
  behind_ = {{0, memory_->shape().floats}};
  const ShardRecord& record = memory_->record();
  started_ = mode_.workers == 0 || record.step > 0 || memory_->begun();
  for (uint32_t i = 0; i < kMostWorkers; ++i) {
    if (record.rows[i].worker == 0) continue;
    rows_[record.rows[i].worker] = i;
    // It has a lease to come back in.
    renew(members_[record.rows[i].worker]);
  }
}

// ---- the ledger ---------------------------------------------------------------------------------

LedgerRow Shard::row_of(uint64_t worker) const {
  const auto found = rows_.find(worker);
  return found == rows_.end() ? LedgerRow() : memory_->record().rows[found->second];
}

uint32_t Shard::index_of(uint64_t worker) {
  if (const auto found = rows_.find(worker); found != rows_.end()) return found->second;
  const ShardRecord& record = memory_->record();
  for (uint32_t i = 0; i < kMostWorkers; ++i) {
    if (record.rows[i].worker == 0) return i;
  }
  // Of those who are silent, the one who has been so for longest.
  auto oldest = members_.end();
  for (auto member = members_.begin(); member != members_.end(); ++member) {
    if (lives(member->second) || member->second.inside > 0) continue;
    if (oldest == members_.end() || member->second.lease_end < oldest->second.lease_end) {
      oldest = member;
    }
  }
  if (oldest == members_.end()) {
    throw Error(Code::kOutOfMemory, "join",
                std::to_string(kMostWorkers) + " workers are here; there is no room for another");
  }
  const uint32_t index = rows_.at(oldest->first);
  rows_.erase(oldest->first);
  members_.erase(oldest);
  return index;
}

// The ledger's part of a decision that changes no weights.
void Shard::decide(uint64_t worker, Outcome outcome) {
  const uint32_t index = rows_.at(worker);
  const uint64_t sequence = members_.at(worker).held->sequence;
  const uint64_t clock = outcome == Outcome::kLapsed ? slowest() : row_of(worker).clock + 1;
  memory_->commit(memory_->now().copy, [&](ShardRecord& next) {
    next.rows[index].sequence = sequence;
    next.rows[index].outcome = outcome;
    next.rows[index].clock = clock;
    if (outcome == Outcome::kSkipped) {
      ++next.skipped;
      ++next.non_finite;
    }
  });
}

// ---- workers ------------------------------------------------------------------------------------

void Shard::renew(Member& member) { member.lease_end = now_ns() + lease_ns_; }

bool Shard::lives(const Member& member) const { return !member.lapsed; }

void Shard::end_leases() {
  const uint64_t now = now_ns();
  for (auto& [id, member] : members_) {
    if (member.inside == 0 && member.lease_end <= now) member.lapsed = true;
  }
}

uint64_t Shard::slowest() const {
  uint64_t least = UINT64_MAX, most = 0;
  for (const auto& [id, member] : members_) {
    const auto row = rows_.find(id);
    if (row == rows_.end()) continue;
    const uint64_t clock = memory_->record().rows[row->second].clock;
    if (lives(member)) least = std::min(least, clock);
    most = std::max(most, clock);
  }
  return least == UINT64_MAX ? most : least;
}

Shard::Known Shard::join(const Worker& worker) {
  if (worker.id == 0) throw Error(Code::kInvalidArgument, "join", "a worker's number is not 0");
  std::lock_guard lock(mutex_);
  end_leases();
  const uint64_t clock = slowest();
  const bool anew = !rows_.contains(worker.id);
  if (anew) {
    const uint32_t index = index_of(worker.id);
    memory_->commit(memory_->now().copy, [&](ShardRecord& next) {
      next.rows[index] = {.worker = worker.id, .clock = clock};
    });
    rows_[worker.id] = index;
  }
  Member& member = members_[worker.id];
  member.name = worker.name;
  member.address = worker.address;
  member.here = true;
  member.gone = false;
  give_up_held(member);
  member.joined = member.hello;
  renew(member);
  changed_.notify_all();
  return {row_of(worker.id), member.hello, anew};
}

void Shard::ready(uint64_t worker) {
  std::lock_guard lock(mutex_);
  const auto found = members_.find(worker);
  if (found == members_.end()) return;
  if (started_) return;
  found->second.ready = true;
  for (auto& [id, member] : members_) {  // whose pushes are held, nobody has looked after
    if (member.held == nullptr || !member.held->awaited || member.held->awaited()) continue;
    member.ready = false;
    give_up_held(member);
    changed_.notify_all();
  }
  const auto ready =
      std::ranges::count_if(members_, [](const auto& each) { return each.second.ready; });
  if (ready < mode_.workers) return;
  memory_->set_begun();
  started_ = true;
  changed_.notify_all();
}

void Shard::hung_up(uint64_t worker, uint64_t hello) {
  std::lock_guard lock(mutex_);
  const auto found = members_.find(worker);
  if (found != members_.end() && found->second.joined == hello) found->second.ready = false;
}

void Shard::give_up(uint64_t worker) {
  std::lock_guard lock(mutex_);
  const auto found = members_.find(worker);
  if (found == members_.end()) return;
  give_up_held(found->second);
  changed_.notify_all();
}

void Shard::take_back(uint64_t worker, uint64_t hello) {
  std::lock_guard lock(mutex_);
  const auto found = members_.find(worker);
  if (found != members_.end() && found->second.joined == hello) let_go(found);
}

void Shard::leave(uint64_t worker) {
  std::lock_guard lock(mutex_);
  if (const auto found = members_.find(worker); found != members_.end()) let_go(found);
}

void Shard::let_go(Members::iterator member) {
  if (member->second.inside > 0) {  // in a push that was given up, and will notice
    member->second.gone = true;
    give_up_held(member->second);
  } else {
    forget(member);
  }
  changed_.notify_all();
}

void Shard::give_up_held(Member& member) {
  member.hello = ++hellos_;
  member.held = nullptr;
}

void Shard::forget(Members::iterator member) {
  if (const auto row = rows_.find(member->first); row != rows_.end()) {
    memory_->commit(memory_->now().copy,
                    [&](ShardRecord& next) { next.rows[row->second] = LedgerRow(); });
    rows_.erase(row);
  }
  members_.erase(member);
}

// Its lease had ended, and its weights are fresh again: it is where the slowest is.
void Shard::be_back(uint64_t worker, Member& member) {
  const uint64_t clock = slowest();
  member.lapsed = false;
  const uint32_t index = rows_.at(worker);
  memory_->commit(memory_->now().copy, [&](ShardRecord& next) { next.rows[index].clock = clock; });
}

void Shard::pulled(uint64_t worker, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  ++pulls_;
  bytes_out_ += bytes;
  const auto found = members_.find(worker);
  if (found == members_.end()) return;
  Member& member = found->second;
  if (member.lapsed) be_back(worker, member);
  renew(member);
}

// ---- pushes -------------------------------------------------------------------------------------

bool Shard::complete() const {
  return started_ && std::ranges::all_of(members_, [&](const auto& each) {
           return !lives(each.second) || each.second.held != nullptr;
         });
}

bool Shard::may_go(uint64_t worker) const {
  if (!started_) return false;
  if (!mode_.staleness) return true;
  return row_of(worker).clock <= slowest() + *mode_.staleness;
}

// Until something changes, or the next lease ends.
void Shard::wait(std::unique_lock<std::mutex>& lock) {
  uint64_t next = UINT64_MAX;
  for (const auto& [id, member] : members_) {
    if (member.inside == 0 && lives(member)) next = std::min(next, member.lease_end);
  }
  if (!started_ || next == UINT64_MAX) {
    changed_.wait(lock);
  } else {
    const uint64_t now = now_ns();
    changed_.wait_for(lock, std::chrono::nanoseconds(next > now ? next - now + 1'000'000 : 0));
  }
  end_leases();
}

// What can be said without applying it; nothing: it is to be applied.
std::optional<Outcome> Shard::look(const Push& push) {
  Member& member = members_.at(push.worker);
  // A pull that was not seen, as those on the same host, renewed its lease like any other.
  const uint64_t now = now_ns();
  const bool pulled = push.pulled_ns <= now && now - push.pulled_ns < lease_ns_;
  if (member.lapsed && pulled) be_back(push.worker, member);
  if (mode_.staleness && member.lapsed) {
    member.held = &push;
    decide(push.worker, Outcome::kLapsed);
    member.held = nullptr;
    member.lapsed = false;
    ++lapsed_;
    changed_.notify_all();
    return Outcome::kLapsed;
  }
  member.lapsed = false;
  if (std::isfinite(push.squares) || mode_.non_finite == NonFinite::kCount) return std::nullopt;
  if (mode_.non_finite == NonFinite::kRaise) {
    throw refuse_push("the gradient of push " + std::to_string(push.sequence) +
                      " is not finite. Nothing was changed. See non_finite for other policies");
  }
  member.held = &push;
  decide(push.worker, Outcome::kSkipped);
  member.held = nullptr;
  changed_.notify_all();
  return Outcome::kSkipped;
}

Shard::Answer Shard::push(const Push& push) {
  if (push.gradient.floats() != memory_->shape().floats)
    throw refuse_push("a gradient of another size");
  if (push.sequence == 0 || push.squares < 0) throw refuse_push("no push has such numbers");
  const bool compensated = mode_.compensation > 0;
  if (compensated != (push.base_weights.size() == push.gradient.floats()) ||
      (!compensated && !push.base_weights.empty())) {
    throw refuse_push(compensated ? "delay compensation needs the weights that were pulled"
                                  : "weights came along, and there is no delay compensation");
  }
  std::unique_lock lock(mutex_);
  const auto found = members_.find(push.worker);
  if (found == members_.end() || !found->second.here) {
    throw Error(Code::kNotFound, "push", "this worker did not join, or it left");
  }
  end_leases();
  const Inside inside(*this, push.worker);
  // It stays while it is inside.
  Member& member = found->second;
  const uint64_t hello = member.hello;
  auto check_open = [&] {
    if (closed_) throw Error(Code::kClosed, "push", "the server was closed");
    if (member.hello != hello) {
      throw Error(Code::kClosed, "push", "its worker has connected anew, and says it again");
    }
  };
  auto decided = [&]() -> std::optional<Answer> {
    const LedgerRow row = row_of(push.worker);
    if (push.sequence > row.sequence) return std::nullopt;
    return Answer{row.outcome, memory_->now().version};
  };
  check_open();
  // The same push may be held already.
  while (member.held != nullptr && !decided()) {
    wait(lock);
    check_open();
  }
  if (const auto answer = decided()) {
    ++repeated_;
    return *answer;
  }
  if (const auto outcome = look(push)) return {*outcome, memory_->now().version};
  struct Hold {
    Hold(Member& its, const Push& what) : member(its), push(what) { member.held = &what; }
    ~Hold() {
      if (member.held == &push) member.held = nullptr;
    }
    Member& member;
    const Push& push;
  } hold(member, push);
  changed_.notify_all();
  const bool synchronous = mode_.staleness == 0u;
  while (!decided()) {
    if (synchronous && complete()) {
      apply_round();
    } else if (!synchronous && may_go(push.worker)) {
      const Part part{&push, 1};
      apply({&part, 1});
    } else {
      wait(lock);
      check_open();
    }
  }
  changed_.notify_all();
  return *decided();
}

void Shard::apply_round() {
  std::vector<std::pair<std::string, Part>> named;
  for (auto& [id, member] : members_) {
    if (member.held != nullptr && member.held->sequence > row_of(id).sequence) {
      named.emplace_back(member.name, Part{member.held, 1});
    }
  }
  std::ranges::stable_sort(named, {}, [](const auto& each) { return each.first; });
  std::vector<Part> parts;
  for (const auto& each : named) parts.push_back(each.second);
  apply(parts);
}

void Shard::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

}  // namespace penstock::train
