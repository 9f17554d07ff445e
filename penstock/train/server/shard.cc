#include "penstock/train/server/shard.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/memory/copy.h"

namespace penstock::train {
namespace {

Error refuse_push(const std::string& why) { return Error(Code::kInvalidArgument, "push", why); }

// Floats that are updated at a time: they stay in a core's cache, while the copy bypasses the
// caches.
constexpr size_t kApplyChunk = size_t{64} << 10;

// DC-ASGD (Zheng et al. 2017): estimates the gradient at the current weights, to first order, with
// lambda * g * g as the Hessian's diagonal.
void compensate(std::span<float> into, std::span<const float> gradient, const float* now,
                std::span<const float> base, float lambda) {
  for (size_t i = 0; i < gradient.size(); ++i) {
    const float g = gradient[i];
    into[i] = g + lambda * g * g * (now[i] - base[i]);
  }
}

// The ranges that the pushes change: ascending, with gaps between them.
std::vector<Range> touched_by(std::span<const Shard::Push* const> pushes, size_t floats) {
  std::vector<Range> all;
  for (const Shard::Push* push : pushes) {
    if (push->gradient.whole()) return {{0, floats}};
    for (const auto& piece : push->gradient.pieces()) all.push_back({piece.begin, piece.end});
  }
  if (pushes.size() == 1) return all;
  std::ranges::sort(all, {}, &Range::begin);
  std::vector<Range> merged;
  for (const Range& each : all) {
    if (merged.empty() || each.begin > merged.back().end) {
      merged.push_back(each);
    } else {
      merged.back().end = std::max(merged.back().end, each.end);
    }
  }
  return merged;
}

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
  memory_->abandon_change();
  stale_ranges_ = {{0, memory_->shape().floats}};
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
  change.commit(memory_->current().copy, edit);
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
    return *answer;
  }
  if (const auto outcome = decide_without_update(push))
    return {*outcome, memory_->current().version};
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

// Applies one push, or the average of several, as one update. REQUIRED: mutex_ is held.
void Shard::apply(std::span<const Part> given) {
  memory_->crash_if(CrashPoint::kBeforeApply);
  const ShardMemory::Change change(*memory_);
  const ShardMemory::Current now = memory_->current();
  std::vector<const Push*> pushes;
  for (const Part& part : given) pushes.push_back(part.push);
  std::vector<Range> touched = touched_by(pushes, memory_->shape().floats);
  const bool other = memory_->shape().copies == 2 && !touched.empty();
  const uint32_t to = other ? 1 - now.copy : now.copy;
  const uint64_t step = memory_->record().step;
  std::vector<Part> parts(given.begin(), given.end());
  double norm = std::sqrt(parts[0].push->squares);
  double scale = 1;
  uint64_t not_finite = 0;
  for (Part& part : parts) not_finite += !std::isfinite(part.push->squares);
  if (parts.size() > 1) {
    // The norm of the average is unknown: each gradient is clipped by its own norm.
    const double clip = optimizer_.clip_norm();
    for (Part& part : parts) {
      const double own = std::sqrt(part.push->squares);
      if (clip != Optimizer::kNone) {
        part.scale = static_cast<float>(std::min(1.0, clip / (own + 1e-6)));
      }
    }
    norm = 0;
    scale = 1.0 / static_cast<double>(parts.size());
  }
  run(optimizer_.pass(step, scale, norm), parts, touched, now.copy, to);

  change.commit(to, [&](ShardRecord& next) {
    ++next.version;
    ++next.step;
    next.non_finite += not_finite;
    for (const Part& part : parts) {
      LedgerRow& row = next.rows[rows_.at(part.push->worker)];
      row.sequence = part.push->sequence;
      row.outcome = Outcome::kApplied;
      ++row.clock;
    }
  });
  if (other) stale_ranges_ = std::move(touched);
  for (const Part& part : parts) {
    Member& member = members_.at(part.push->worker);
    member.held = nullptr;
    ++member.pushes;
    ++pushes_;
    pulls_ += part.push->pulls;
    bytes_in_ += part.push->bytes;
    const uint64_t behind = now.version - std::min(now.version, part.push->base);
    ++staleness_[std::min<size_t>(kBins - 1, std::bit_width(behind))];
  }
  memory_->crash_if(CrashPoint::kAfterCommit);
}

// Copies the stale ranges from copy `from` to copy `to`.
void Shard::copy_stale_ranges(uint32_t from, uint32_t to) {
  auto copy = [&](std::span<float> into, std::span<const float> source) {
    for (const Range& range : stale_ranges_) {
      copy_stream(into.data() + range.begin, source.data() + range.begin,
                  range.size() * sizeof(float));
    }
  };
  copy(memory_->weights(to), memory_->weights(from));
  for (uint32_t i = 0; i < memory_->shape().states; ++i) {
    copy(memory_->state(to, i), memory_->state(from, i));
  }
}

// REQUIRED: `touched` are the ranges that the parts change.
void Shard::run(const kernels::Pass& pass, std::span<const Part> parts,
                std::span<const Range> touched, uint32_t from, uint32_t to) {
  const size_t floats = memory_->shape().floats;
  const uint32_t states = memory_->shape().states;
  const size_t chunk = std::min(kApplyChunk, floats);
  scratch_.resize(5 * kApplyChunk);
  if (from != to) {
    const bool all = touched.size() == 1 && touched[0].size() == floats;
    if (!all) copy_stale_ranges(from, to);
    // Until this update is complete, the other copy is stale everywhere.
    stale_ranges_.assign(1, {0, floats});
  }
  auto buffer = [&](size_t i) { return std::span(scratch_).subspan(i * kApplyChunk, chunk); };
  float* weights = memory_->weights(to).data();
  float* state[2] = {};
  const float* old_weights = memory_->weights(from).data();
  const float* old_state[2] = {};
  for (uint32_t i = 0; i < states; ++i) {
    state[i] = memory_->state(to, i).data();
    old_state[i] = memory_->state(from, i).data();
  }
  auto update = [&](size_t begin, size_t n) {
    std::span<const float> gradient = parts[0].push->gradient.at(begin, n, buffer(0));
    if (parts.size() > 1) {
      const auto sum = buffer(1).first(n);
      for (size_t i = 0; i < n; ++i) sum[i] = gradient[i] * parts[0].scale;
      for (const Part& part : parts.subspan(1)) {
        const auto next = part.push->gradient.at(begin, n, buffer(0));
        for (size_t i = 0; i < n; ++i) sum[i] += next[i] * part.scale;
      }
      gradient = sum;
    } else if (compensation_ > 0) {
      const auto into = buffer(1).first(n);
      compensate(into, gradient, old_weights + begin, parts[0].push->base_weights.subspan(begin, n),
                 compensation_);
      gradient = into;
    }
    if (from == to) {
      kernels::update(pass, weights + begin, gradient.data(),
                      state[0] == nullptr ? nullptr : state[0] + begin,
                      state[1] == nullptr ? nullptr : state[1] + begin, n);
    } else {
      const size_t bytes = n * sizeof(float);
      float* fresh = buffer(2).data();
      float* fresh_state[2] = {};
      std::memcpy(fresh, old_weights + begin, bytes);
      for (uint32_t i = 0; i < states; ++i) {
        fresh_state[i] = buffer(3 + i).data();
        std::memcpy(fresh_state[i], old_state[i] + begin, bytes);
      }
      kernels::update(pass, fresh, gradient.data(), fresh_state[0], fresh_state[1], n);
      copy_stream(weights + begin, fresh, bytes);
      for (uint32_t i = 0; i < states; ++i) copy_stream(state[i] + begin, fresh_state[i], bytes);
    }
    memory_->crash_if(CrashPoint::kInApply);
  };
  for (const Range& range : touched) {
    for (size_t begin = range.begin; begin < range.end; begin += chunk) {
      update(begin, std::min(chunk, range.end - begin));
    }
  }
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
  const ShardMemory::Change change(*memory_);
  const uint32_t copy = memory_->current().copy;
  std::ranges::copy(checkpoint.weights, memory_->weights(copy).begin());
  for (uint32_t i = 0; i < memory_->shape().states; ++i) {
    std::ranges::copy(checkpoint.states[i], memory_->state(copy, i).begin());
  }
  change.commit(copy, [&](ShardRecord& next) { next = checkpoint.record; });
  for (uint32_t i = 0; i < kMaxWorkers; ++i) {
    const uint64_t worker = checkpoint.record.rows[i].worker;
    if (worker == 0) continue;
    rows_[worker] = i;
    if (!checkpoint.record.rows[i].departed) renew(members_[worker]);
  }
  started_ = started_ || checkpoint.record.step > 0;
}

}  // namespace penstock::train
