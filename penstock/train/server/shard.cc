#include "penstock/train/server/shard.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
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
  if (mode.workers > kMaxWorkers) {
    throw wrong("workers is " + std::to_string(mode.workers) + "; there can be " +
                std::to_string(kMaxWorkers));
  }
}

// The lease of a worker does not run during its push(), in which the shard makes it wait.
class Shard::PushScope {
 public:
  PushScope(Shard& shard, uint64_t worker) : shard_(shard), worker_(worker) {
    ++shard_.members_.at(worker).inside;
  }
  ~PushScope() {
    const auto found = shard_.members_.find(worker_);
    if (found == shard_.members_.end()) return;  // it left meanwhile
    --found->second.inside;
    shard_.renew(found->second);
    if (found->second.gone && found->second.inside == 0) shard_.erase_member(found);
    shard_.changed_.notify_all();  // its lease runs again
  }
  PushScope(const PushScope&) = delete;
  PushScope& operator=(const PushScope&) = delete;

 private:
  Shard& shard_;
  const uint64_t worker_;
};

// The follower may get a gradient from the memory of a push() after another thread has applied it.
// So no push() returns before all changes were sent. REQUIRED: not under mutex_.
class Shard::ReplicaScope {
 public:
  explicit ReplicaScope(ReplicaLog* replicas) : replicas_(replicas) {}
  ~ReplicaScope() {
    if (replicas_ != nullptr) replicas_->wait_sent();
  }
  ReplicaScope(const ReplicaScope&) = delete;
  ReplicaScope& operator=(const ReplicaScope&) = delete;

 private:
  ReplicaLog* const replicas_;
};

Shard::Shard(std::shared_ptr<ShardMemory> memory, Optimizer optimizer, const ServerMode& mode)
    : memory_(std::move(memory)),
      optimizer_(std::move(optimizer)),
      mode_(mode),
      lease_ns_(static_cast<uint64_t>(mode.lease_s * 1e9)),
      update_(memory_, optimizer_, static_cast<float>(mode.compensation)),
      began_ns_(now_ns()) {
  check(mode);
  if (memory_->shape().states != optimizer_.state_slabs()) {
    throw Error(Code::kInvalidArgument, "shard", "this memory is of another optimizer");
  }
  memory_->abandon_change();
  const ShardRecord& record = memory_->record();
  started_ = mode_.workers == 0 || record.step > 0 || memory_->begun();
  for (uint32_t i = 0; i < kMaxWorkers; ++i) {
    if (record.rows[i].worker == 0) continue;
    rows_[record.rows[i].worker] = i;
    // Gives the worker one lease to reconnect.
    if (!record.rows[i].departed) renew(members_[record.rows[i].worker]);
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
  for (uint32_t i = 0; i < kMaxWorkers; ++i) {
    if (record.rows[i].worker == 0) return i;
  }
  // Reuses the row of the worker that has been silent for longest.
  auto oldest = members_.end();
  for (auto member = members_.begin(); member != members_.end(); ++member) {
    if (has_lease(member->second) || member->second.inside > 0) continue;
    if (record.rows[rows_.at(member->first)].chosen) continue;
    if (oldest == members_.end() || member->second.lease_end < oldest->second.lease_end) {
      oldest = member;
    }
  }
  if (oldest == members_.end()) {
    throw Error(Code::kOutOfMemory, "join",
                std::to_string(kMaxWorkers) +
                    " workers have joined, the maximum; those with a worker_id of the caller's "
                    "choice are remembered after they have left");
  }
  const uint32_t index = rows_.at(oldest->first);
  rows_.erase(oldest->first);
  members_.erase(oldest);
  return index;
}

// Changes the record only, no floats.
template <typename Edit>
void Shard::change_record(Edit edit) {
  const ShardMemory::Change change(*memory_);
  replicate(edit, {});
  change.commit(memory_->current().copy, edit);
}

// Gives a change to the follower, before it is made here. REQUIRED: a ShardMemory::Change.
template <typename Edit>
void Shard::replicate(Edit edit, std::span<const Push* const> pushes) {
  if (!replicas_ || !replicas_->attached()) return;
  const ShardRecord& before = memory_->record();
  auto next = std::make_unique<ShardRecord>(before);
  edit(*next);
  ReplicaEntry entry;
  entry.record = {.version = next->version,
                  .step = next->step,
                  .skipped = next->skipped,
                  .non_finite = next->non_finite,
                  .evictions = next->evictions};
  for (uint32_t i = 0; i < kMaxWorkers; ++i) {
    if (before.rows[i] != next->rows[i]) entry.rows.emplace_back(i, next->rows[i]);
  }
  for (const Push* push : pushes) {
    entry.parts.emplace_back(push->gradient, push->squares, push->base_weights, push->in_place);
  }
  replicas_->add(std::move(entry));
}

// Records a decision that changes no weights.
void Shard::record_decision(uint64_t worker, Outcome outcome) {
  const uint32_t index = rows_.at(worker);
  const uint64_t sequence = members_.at(worker).held->sequence;
  const uint64_t clock = outcome == Outcome::kLapsed ? slowest_clock() : row_of(worker).clock + 1;
  change_record([&](ShardRecord& next) {
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

bool Shard::has_lease(const Member& member) const { return !member.lapsed; }

void Shard::expire_leases() {
  const uint64_t now = now_ns();
  for (auto& [id, member] : members_) {
    if (member.inside == 0 && member.lease_end <= now) member.lapsed = true;
  }
}

uint64_t Shard::slowest_clock() const {
  uint64_t least = UINT64_MAX, most = 0;
  for (const auto& [id, member] : members_) {
    const auto row = rows_.find(id);
    if (row == rows_.end()) continue;
    const uint64_t clock = memory_->record().rows[row->second].clock;
    if (has_lease(member)) least = std::min(least, clock);
    most = std::max(most, clock);
  }
  return least == UINT64_MAX ? most : least;
}

Shard::JoinResult Shard::join(const Worker& worker) {
  if (worker.id == 0) throw Error(Code::kInvalidArgument, "join", "a worker's id must not be 0");
  const JoinResult result = join_here(worker);
  // The result acknowledges the worker's pushes up to its number.
  if (replicas_) replicas_->wait_acknowledged();
  return result;
}

Shard::JoinResult Shard::join_here(const Worker& worker) {
  std::lock_guard lock(mutex_);
  expire_leases();
  const uint64_t clock = slowest_clock();
  const bool is_new = !rows_.contains(worker.id);
  const LedgerRow before = row_of(worker.id);
  if (worker.incarnation != 0 && worker.incarnation < before.incarnation) {
    throw Error(Code::kInvalidArgument, "join",
                "another client has taken over worker_id " + std::to_string(worker.id) +
                    "; give each worker its own");
  }
  // Without evictions since then, this shard never knew the worker: it continues from an older
  // snapshot, and has nothing of the push.
  if (is_new && worker.in_doubt > 0 && memory_->record().evictions > worker.evictions) {
    throw Error(Code::kInvalidArgument, "join",
                "this worker was silent for so long that its place was given to another; push " +
                    std::to_string(worker.in_doubt) +
                    " may be in the weights, and is not repeated. Connect anew and pull");
  }
  const uint32_t incarnation =
      worker.incarnation == 0 ? before.incarnation + 1 : worker.incarnation;
  if (is_new || before.departed || before.incarnation != incarnation) {
    const bool evicts = is_new && rows_.size() == kMaxWorkers;
    const uint32_t index = index_of(worker.id);
    change_record([&](ShardRecord& next) {
      LedgerRow& row = next.rows[index];
      if (is_new) row = {.worker = worker.id, .sequence = worker.decided, .chosen = worker.chosen};
      if (is_new || row.departed) row.clock = clock;
      row.departed = 0;
      row.incarnation = incarnation;
      next.evictions += evicts;
    });
    rows_[worker.id] = index;
  }
  Member& member = members_[worker.id];
  member.name = worker.name;
  member.address = worker.address;
  member.here = true;
  member.gone = false;
  drop_held_push(member);
  member.joined = member.hello;
  renew(member);
  changed_.notify_all();
  return {row_of(worker.id), member.hello, is_new, memory_->record().evictions};
}

void Shard::ready(uint64_t worker) {
  std::lock_guard lock(mutex_);
  const auto found = members_.find(worker);
  if (found == members_.end()) return;
  if (started_) return;
  found->second.ready = true;
  for (auto& [id, member] : members_) {  // connections of held pushes were not checked since
    if (member.held == nullptr || !member.held->is_connected || member.held->is_connected())
      continue;
    member.ready = false;
    drop_held_push(member);
    changed_.notify_all();
  }
  const auto ready =
      std::ranges::count_if(members_, [](const auto& each) { return each.second.ready; });
  if (ready < mode_.workers) return;
  memory_->set_begun();
  started_ = true;
  changed_.notify_all();
}

void Shard::on_disconnect(uint64_t worker, uint64_t hello) {
  std::lock_guard lock(mutex_);
  const auto found = members_.find(worker);
  if (found != members_.end() && found->second.joined == hello) found->second.ready = false;
}

void Shard::cancel_push(uint64_t worker) {
  std::lock_guard lock(mutex_);
  const auto found = members_.find(worker);
  if (found == members_.end()) return;
  drop_held_push(found->second);
  changed_.notify_all();
}

void Shard::undo_join(uint64_t worker, uint64_t hello) {
  std::lock_guard lock(mutex_);
  const auto found = members_.find(worker);
  if (found != members_.end() && found->second.joined == hello) remove(found);
}

void Shard::leave(uint64_t worker, uint64_t hello) {
  std::lock_guard lock(mutex_);
  const auto found = members_.find(worker);
  if (found == members_.end() || (hello != 0 && found->second.joined != hello)) return;
  remove(found);
}

void Shard::remove(Members::iterator member) {
  if (member->second.inside > 0) {  // its push() was dropped and will notice
    member->second.gone = true;
    drop_held_push(member->second);
  } else {
    erase_member(member);
  }
  changed_.notify_all();
}

void Shard::drop_held_push(Member& member) {
  member.hello = ++hellos_;
  member.held = nullptr;
}

void Shard::erase_member(Members::iterator member) {
  if (const auto row = rows_.find(member->first); row != rows_.end()) {
    const LedgerRow before = row_of(member->first);
    const bool stays = before.chosen && before.sequence > 0;
    change_record([&](ShardRecord& next) {
      if (stays) {
        next.rows[row->second].departed = 1;
      } else {
        next.rows[row->second] = LedgerRow();
      }
    });
    if (!stays) rows_.erase(row);
  }
  members_.erase(member);
}

// The lease had expired, but the worker's weights are fresh again: its clock becomes the slowest
// worker's.
void Shard::rejoin(uint64_t worker, Member& member) {
  const uint64_t clock = slowest_clock();
  member.lapsed = false;
  const uint32_t index = rows_.at(worker);
  change_record([&](ShardRecord& next) { next.rows[index].clock = clock; });
}

void Shard::pulled(uint64_t worker, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  ++pulls_;
  bytes_out_ += bytes;
  const auto found = members_.find(worker);
  if (found == members_.end()) return;
  Member& member = found->second;
  if (member.lapsed) rejoin(worker, member);
  renew(member);
}

void Shard::alive(uint64_t worker) {
  std::lock_guard lock(mutex_);
  expire_leases();
  const auto found = members_.find(worker);
  if (found != members_.end() && has_lease(found->second)) renew(found->second);
}

// ---- pushes -------------------------------------------------------------------------------------

bool Shard::all_pushes_held() const {
  return started_ && std::ranges::all_of(members_, [&](const auto& each) {
           return !has_lease(each.second) || each.second.held != nullptr;
         });
}

bool Shard::may_apply(uint64_t worker) const {
  if (!started_) return false;
  if (!mode_.staleness) return true;
  return row_of(worker).clock <= slowest_clock() + *mode_.staleness;
}

// Waits for a change, or until the next lease expires.
void Shard::wait(std::unique_lock<std::mutex>& lock) {
  uint64_t next = UINT64_MAX;
  for (const auto& [id, member] : members_) {
    if (member.inside == 0 && has_lease(member)) next = std::min(next, member.lease_end);
  }
  if (!started_ || next == UINT64_MAX) {
    changed_.wait(lock);
  } else {
    const uint64_t now = now_ns();
    changed_.wait_for(lock, std::chrono::nanoseconds(next > now ? next - now + 1'000'000 : 0));
  }
  expire_leases();
}

// The outcome, if it is known without an update; nothing: apply the push.
std::optional<Outcome> Shard::decide_without_update(const Push& push) {
  Member& member = members_.at(push.worker);
  // A pull that the shard did not see (on the same host) renewed the lease, too.
  const uint64_t now = now_ns();
  const bool pulled = push.pulled_ns <= now && now - push.pulled_ns < lease_ns_;
  if (member.lapsed && pulled) rejoin(push.worker, member);
  if (mode_.staleness && member.lapsed) {
    member.held = &push;
    record_decision(push.worker, Outcome::kLapsed);
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
  record_decision(push.worker, Outcome::kSkipped);
  member.held = nullptr;
  changed_.notify_all();
  return Outcome::kSkipped;
}

Shard::Answer Shard::push(const Push& push) {
  if (push.gradient.floats() != memory_->shape().floats)
    throw refuse_push("a gradient of another size");
  if (push.sequence == 0 || push.squares < 0)
    throw refuse_push("invalid sequence number or sum of squares");
  const bool compensated = mode_.compensation > 0;
  if (compensated != (push.base_weights.size() == push.gradient.floats()) ||
      (!compensated && !push.base_weights.empty())) {
    throw refuse_push(compensated ? "delay compensation needs the pulled weights"
                                  : "base weights were sent, but there is no delay compensation");
  }
  const ReplicaScope sent(replicas_.get());
  std::unique_lock lock(mutex_);
  const auto found = members_.find(push.worker);
  if (found == members_.end() || !found->second.here) {
    throw Error(Code::kNotFound, "push", "this worker has not joined, or has left");
  }
  expire_leases();
  const PushScope inside(*this, push.worker);
  // The member is not erased during push().
  Member& member = found->second;
  if (push.hello != 0 && push.hello != member.joined) {
    throw Error(Code::kClosed, "push", "the worker has connected again since");
  }
  const uint64_t hello = member.hello;
  auto check_open = [&] {
    if (closed_) throw Error(Code::kClosed, "push", "the server was closed");
    if (member.hello != hello) {
      throw Error(Code::kClosed, "push", "the worker has reconnected and will push again");
    }
  };
  auto decided = [&]() -> std::optional<Answer> {
    const LedgerRow row = row_of(push.worker);
    if (push.sequence > row.sequence) return std::nullopt;
    return Answer{row.outcome, memory_->current().version};
  };
  check_open();
  // The same push may be held already.
  while (member.held != nullptr && !decided()) {
    wait(lock);
    check_open();
  }
  if (const auto answer = decided()) {
    ++repeated_;
    wait_for_follower(lock);
    return *answer;
  }
  if (const auto outcome = decide_without_update(push)) {
    const Answer answer{*outcome, memory_->current().version};
    wait_for_follower(lock);
    return answer;
  }
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
    if (synchronous && all_pushes_held()) {
      apply_round();
    } else if (!synchronous && may_apply(push.worker)) {
      const Push* const one = &push;
      apply({&one, 1});
    } else {
      wait(lock);
      check_open();
    }
  }
  changed_.notify_all();
  const Answer answer = *decided();
  wait_for_follower(lock);
  return answer;
}

// Until the follower has all changes so far.
void Shard::wait_for_follower(std::unique_lock<std::mutex>& lock) {
  if (!replicas_) return;
  struct Unlocked {
    explicit Unlocked(std::unique_lock<std::mutex>& its) : lock(its) { lock.unlock(); }
    ~Unlocked() { lock.lock(); }
    std::unique_lock<std::mutex>& lock;
  } unlocked(lock);
  replicas_->wait_acknowledged();
}

void Shard::apply_round() {
  std::vector<std::pair<std::string, const Push*>> named;
  for (auto& [id, member] : members_) {
    if (member.held != nullptr && member.held->sequence > row_of(id).sequence) {
      named.emplace_back(member.name, member.held);
    }
  }
  std::ranges::stable_sort(named, {}, [](const auto& each) { return each.first; });
  std::vector<const Push*> pushes;
  for (const auto& each : named) pushes.push_back(each.second);
  apply(pushes);
}

// Applies one push, or the average of several, as one update. REQUIRED: mutex_ is held.
void Shard::apply(std::span<const Push* const> pushes) {
  memory_->crash_if(CrashPoint::kBeforeApply);
  const ShardMemory::Change change(*memory_);
  const uint64_t version = memory_->current().version;
  std::vector<ShardUpdate::Part> parts;
  uint64_t not_finite = 0;
  for (const Push* push : pushes) {
    parts.push_back({&push->gradient, push->squares, push->base_weights});
    not_finite += !std::isfinite(push->squares);
  }
  const auto edit = [&](ShardRecord& next) {
    ++next.version;
    ++next.step;
    next.non_finite += not_finite;
    for (const Push* push : pushes) {
      LedgerRow& row = next.rows[rows_.at(push->worker)];
      row.sequence = push->sequence;
      row.outcome = Outcome::kApplied;
      ++row.clock;
    }
  };
  replicate(edit, pushes);
  change.commit(update_.compute(parts), edit);
  update_.committed();
  for (const Push* push : pushes) {
    Member& member = members_.at(push->worker);
    member.held = nullptr;
    ++member.pushes;
    ++pushes_;
    pulls_ += push->pulls;
    bytes_in_ += push->bytes;
    const uint64_t behind = version - std::min(version, push->base);
    ++staleness_[std::min<size_t>(kBins - 1, std::bit_width(behind))];
  }
  memory_->crash_if(CrashPoint::kAfterCommit);
}

void Shard::replicate_to(std::shared_ptr<ReplicaLog> replicas) { replicas_ = std::move(replicas); }

std::unique_ptr<ShardCheckpoint> Shard::copy(const std::function<void()>& at) const {
  std::lock_guard lock(mutex_);
  at();
  return memory_->checkpoint();
}

void Shard::close() {
  if (replicas_) replicas_->close();
  std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

std::string Shard::stats() const {
  std::lock_guard lock(mutex_);
  const uint64_t now = now_ns();
  const ShardRecord& record = memory_->record();
  nlohmann::ordered_json workers = nlohmann::ordered_json::array();
  for (const auto& [id, member] : members_) {
    const LedgerRow row = row_of(id);
    const auto left = static_cast<int64_t>(member.lease_end - now);
    workers.push_back(
        {{"worker", id},
         {"name", member.name},
         {"address", member.address},
         {"sequence", row.sequence},
         {"clock", row.clock},
         {"pushes", member.pushes},
         {"waiting", member.inside > 0},
         {"lapsed", member.lapsed},
         {"lease_left_s", member.inside > 0 ? mode_.lease_s : std::max(0.0, 1e-9 * left)}});
  }
  const nlohmann::ordered_json stats = {{"version", record.version},
                                        {"step", record.step},
                                        {"floats", memory_->shape().floats},
                                        {"replicas", replicas_ ? replicas_->replicas() : 1},
                                        {"seconds", 1e-9 * static_cast<double>(now - began_ns_)},
                                        {"pushes", pushes_},
                                        {"repeated", repeated_},
                                        {"lapsed", lapsed_},
                                        {"skipped", record.skipped},
                                        {"non_finite", record.non_finite},
                                        {"pulls", pulls_},
                                        {"bytes_in", bytes_in_},
                                        {"bytes_out", bytes_out_},
                                        {"staleness", staleness_},
                                        {"saved_version", memory_->saved().version},
                                        {"saving_failed", memory_->saving_failed()},
                                        {"workers", workers}};
  return stats.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

uint64_t Shard::read(std::span<float> into) const {
  std::lock_guard lock(mutex_);
  const ShardMemory::Current now = memory_->current();
  std::ranges::copy(memory_->weights(now.copy), into.begin());
  return now.version;
}

void Shard::restore(const ShardCheckpoint& checkpoint) {
  std::lock_guard lock(mutex_);
  if (!members_.empty() || checkpoint.weights.size() != memory_->shape().floats ||
      checkpoint.states.size() != memory_->shape().states) {
    throw Error(Code::kInvalidArgument, "restore", "the state of another shard");
  }
  memory_->load(checkpoint);
  for (uint32_t i = 0; i < kMaxWorkers; ++i) {
    const uint64_t worker = checkpoint.record.rows[i].worker;
    if (worker == 0) continue;
    rows_[worker] = i;
    if (!checkpoint.record.rows[i].departed) renew(members_[worker]);
  }
  started_ = started_ || checkpoint.record.step > 0;
}

}  // namespace penstock::train
