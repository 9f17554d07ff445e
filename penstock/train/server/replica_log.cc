#include "penstock/train/server/replica_log.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/train/server/shard_messages.h"

namespace penstock::train {
namespace {

constexpr const char* kReplicas = "ParameterServer";
constexpr double kRetryS = 1;               // after an assignment that could not be written
constexpr double kSlowestBytesPerS = 50e6;  // of a link, and of an update
constexpr double kBeatsPerSilence = 4;
constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

uint64_t after(double seconds) {
  const double ns = seconds * 1e9;
  return ns < 1e18 ? now_ns() + static_cast<uint64_t>(ns) : kNever;
}

}  // namespace

void check(const ReplicaOptions& options) {
  if (!(options.timeout_s > 0) || !(options.silence_s > 0)) {
    throw Error(Code::kInvalidArgument, kReplicas, "the replicas' timeout must be above 0 seconds");
  }
}

ReplicaPart::ReplicaPart(const Gradient& gradient, double squares,
                         std::span<const float> base_weights, bool copies)
    : squares_(squares),
      encoding_(gradient.encoding()),
      runs_(gradient.runs()),
      base_(std::as_bytes(base_weights)),
      values_(gradient.values()) {
  if (!copies) return;
  copied_.resize(base_.size() + values_.size());
  if (!base_.empty()) std::memcpy(copied_.data(), base_.data(), base_.size());
  if (!values_.empty()) std::memcpy(copied_.data() + base_.size(), values_.data(), values_.size());
  base_ = std::span(copied_).first(base_.size());
  values_ = std::span(copied_).subspan(base_.size());
}

void ReplicaPart::append_to(std::vector<std::span<const std::byte>>& body) const {
  body.push_back(base_);
  body.push_back(runs_);
  body.push_back(values_);
}

ReplicaLog::ReplicaLog(ReplicaOptions options, std::string folder, std::string role,
                       Assignment assignment)
    : options_(options),
      folder_(std::move(folder)),
      role_(std::move(role)),
      epoch_(assignment.epoch),
      assignment_(assignment),
      alone_ns_(after(options.timeout_s)) {}

uint32_t ReplicaLog::replicas() const {
  const std::lock_guard lock(mutex_);
  return following_ ? 2 : 1;
}

bool ReplicaLog::attached() const {
  const std::lock_guard lock(mutex_);
  return attached_;
}

void ReplicaLog::check_open() const {
  if (state_ == State::kFenced) {
    throw Error(Code::kClosed, kReplicas, "another process leads this shard now");
  }
  if (closed_) throw Error(Code::kClosed, kReplicas, "the server was closed");
}

// ---- pushes -------------------------------------------------------------------------------------

void ReplicaLog::add(ReplicaEntry entry) {
  const std::lock_guard lock(mutex_);
  entry.number = ++last_;
  if (!attached_) return;
  entries_.push_back(std::move(entry));
  changed_.notify_all();
}

void ReplicaLog::wait_acknowledged() {
  std::unique_lock lock(mutex_);
  const uint64_t number = last_;
  for (;;) {
    check_open();
    if (following_ && acked_ >= number) return;
    if (state_ == State::kAlone && !attached_) return;
    if (state_ == State::kAlone || attached_ || alone_ns_ == kNever) {
      changed_.wait(lock);
      continue;
    }
    const uint64_t now = now_ns();
    if (now >= alone_ns_) {
      go_alone();
    } else {
      changed_.wait_for(lock, std::chrono::nanoseconds(alone_ns_ - now));
    }
  }
}

void ReplicaLog::wait_sent() {
  std::unique_lock lock(mutex_);
  const uint64_t number = last_;
  changed_.wait(lock, [&] { return !attached_ || sent_ >= number; });
}

// REQUIRED: mutex_ is held.
void ReplicaLog::go_alone() {
  try {
    if ((assignment_.follower == 0 && !in_doubt_) || make_assignment(0)) state_ = State::kAlone;
  } catch (const Error&) {  // the folder may come back
    alone_ns_ = after(kRetryS);
  }
  changed_.notify_all();
}

// False: fenced. REQUIRED: mutex_ is held.
bool ReplicaLog::make_assignment(uint64_t follower) {
  in_doubt_ = true;
  for (;;) {
    Assignment next = assignment_;
    ++next.epoch;
    next.follower = follower;
    if (assign(folder_, role_, next)) {
      assignment_ = next;
      epoch_.store(next.epoch);
      in_doubt_ = false;
      return true;
    }
    const Assignment newest = newest_assignment(folder_, role_);
    if (newest.epoch < next.epoch) {
      throw Error(Code::kSystem, kReplicas,
                  folder_ + " does not show the newest epoch of " + role_);
    }
    if (newest.server != next.server || newest.leader != next.leader) {
      state_ = State::kFenced;
      return false;
    }
    assignment_ = newest;  // made by a former call, which threw kSystem nevertheless
  }
}

// ---- the follower -------------------------------------------------------------------------------

void ReplicaLog::serve(net::Connection& connection, uint64_t follower, uint64_t server,
                       const Copy& copy) {
  {
    const std::lock_guard lock(mutex_);
    check_open();
    if (server != assignment_.server) {
      throw Error(Code::kInvalidArgument, kReplicas, "this shard is of another server");
    }
    if (serving_) throw Error(Code::kClosed, kReplicas, "this shard has a follower");
    serving_ = true;
    stopping_ = false;
  }
  const auto end = [this]() noexcept {
    const std::lock_guard lock(mutex_);
    if (following_) {
      state_ = state_ == State::kFenced ? state_ : State::kWaiting;
      alone_ns_ = after(options_.timeout_s);
    }
    serving_ = attached_ = following_ = false;
    entries_.clear();
    changed_.notify_all();
  };
  // Outlive the thread that sends them.
  uint64_t number = 0;
  std::unique_ptr<const ShardCheckpoint> state;
  std::thread sending;
  try {
    state = copy([&] {
      const std::lock_guard lock(mutex_);
      check_open();
      attached_ = true;
      number = sent_ = acked_ = last_;
    });
    sending = std::thread([&] {
      os::block_all_signals();
      try {
        send_all(connection, *state, number);
      } catch (const std::exception&) {
        // The connection is lost, which the other thread notices.
      }
      connection.close();
    });
    receive_all(connection, follower);
  } catch (...) {
    connection.close();
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    if (sending.joinable()) sending.join();
    end();
    throw;
  }
}

void ReplicaLog::send_all(net::Connection& connection, const ShardCheckpoint& state,
                          uint64_t number) {
  std::vector<std::span<const std::byte>> body{std::as_bytes(std::span(&state.record, 1)),
                                               std::as_bytes(std::span(state.weights))};
  for (const auto& each : state.states) body.push_back(std::as_bytes(std::span(each)));
  std::vector<std::byte> head;
  wire::append(head, wire::AnswerHead{.version = state.record.version});
  wire::append(head, wire::StateHead{.number = number, .epoch = epoch()});
  {
    const std::lock_guard lock(mutex_);
    for (const auto& part : body) sending_bytes_ += part.size();
  }
  connection.send(head, body);
  const std::chrono::duration<double> pause(options_.silence_s / kBeatsPerSilence);
  for (;;) {
    std::optional<ReplicaEntry> entry;
    {
      std::unique_lock lock(mutex_);
      sent_ = number;
      sending_bytes_ = 0;
      changed_.notify_all();
      changed_.wait_for(lock, pause, [&] { return stopping_ || closed_ || !entries_.empty(); });
      if (stopping_ || closed_) return;
      if (!entries_.empty()) {
        entry = std::move(entries_.front());
        entries_.pop_front();
        number = entry->number;
      }
    }
    head.clear();
    body.clear();
    wire::EntryHead said{.number = number};
    if (!entry) {
      said.beat = 1;
      wire::append(head, said);
      connection.send(head);
      continue;
    }
    said.record = entry->record;
    said.rows = static_cast<uint32_t>(entry->rows.size());
    said.parts = static_cast<uint32_t>(entry->parts.size());
    wire::append(head, said);
    for (const auto& [index, row] : entry->rows) {
      wire::append(head, index);
      wire::append(head, row);
    }
    uint64_t bytes = 0;
    for (const ReplicaPart& part : entry->parts) {
      wire::append(head, wire::PartHead{.squares = part.squares(),
                                        .bytes = part.gradient_bytes(),
                                        .encoding = static_cast<uint32_t>(part.encoding()),
                                        .has_base = part.base_floats() > 0});
      part.append_to(body);
      bytes += part.gradient_bytes() + part.base_floats() * sizeof(float);
    }
    {
      const std::lock_guard lock(mutex_);
      sending_bytes_ = bytes;
    }
    connection.send(head, body);
  }
}

// Whether the follower should have acknowledged a message, or a beat, since its last message.
bool ReplicaLog::lost(uint64_t heard_ns) const {
  const std::lock_guard lock(mutex_);
  const double patience_s =
      options_.silence_s + static_cast<double>(sending_bytes_) / kSlowestBytesPerS;
  return 1e-9 * static_cast<double>(now_ns() - heard_ns) > patience_s;
}

void ReplicaLog::receive_all(net::Connection& connection, uint64_t follower) {
  uint64_t heard_ns = now_ns();
  for (;;) {
    std::optional<net::Received> message;
    try {
      message = connection.receive(options_.silence_s / kBeatsPerSilence);
    } catch (const Error& error) {
      if (error.code() != Code::kTimeout || connection.closed() || lost(heard_ns)) throw;
      continue;
    }
    heard_ns = now_ns();
    if (!message) throw Error(Code::kClosed, kReplicas, "the follower has ended");
    ByteReader head = wire::reader(message->head, kReplicas);
    const auto said = head.get<wire::EntryAck>();
    if (said.magic != wire::AskHead::kMagic || head.left() != 0 || message->body_bytes != 0) {
      throw Error(Code::kDataLoss, kReplicas, "the follower sent no acknowledgement");
    }
    acknowledge(said.number, follower);
  }
}

void ReplicaLog::acknowledge(uint64_t number, uint64_t follower) {
  const std::lock_guard lock(mutex_);
  check_open();
  if (number < acked_ || number > last_) {
    throw Error(Code::kDataLoss, kReplicas, "the follower acknowledged what was not sent");
  }
  acked_ = number;
  if (!following_) {  // the first: it has the state
    // Waits from now on: if an error hides that the assignment was made, the follower may lead.
    state_ = State::kWaiting;
    alone_ns_ = after(options_.timeout_s);
    if (!make_assignment(follower)) check_open();
    following_ = true;
  }
  changed_.notify_all();
}

void ReplicaLog::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

}  // namespace penstock::train
