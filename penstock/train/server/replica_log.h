#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/net/connection.h"
#include "penstock/train/server/epoch.h"
#include "penstock/train/server/gradient.h"
#include "penstock/train/server/shard_memory.h"

namespace penstock::train {

// A part of an update for the follower.
class ReplicaPart {
 public:
  // `copies`: the gradient and the base weights may change before they are sent.
  ReplicaPart(const Gradient& gradient, double squares, std::span<const float> base_weights,
              bool copies);
  ReplicaPart(ReplicaPart&&) noexcept = default;
  ReplicaPart(const ReplicaPart&) = delete;
  ReplicaPart& operator=(const ReplicaPart&) = delete;

  double squares() const { return squares_; }
  Encoding encoding() const { return encoding_; }
  uint64_t base_floats() const { return base_.size() / sizeof(float); }
  uint64_t gradient_bytes() const { return runs_.size() + values_.size(); }
  // Base weights, then the gradient. Valid as long as this object, and the push unless copied.
  void append_to(std::vector<std::span<const std::byte>>& body) const;

 private:
  double squares_;
  Encoding encoding_;
  std::vector<std::byte> runs_;
  std::vector<std::byte> copied_;
  std::span<const std::byte> base_, values_;
};

// The numbers of a ShardRecord that a change may change, besides rows.
struct ReplicaNumbers {
  uint64_t version = 0;
  uint64_t step = 0;
  uint64_t skipped = 0;
  uint64_t non_finite = 0;
  uint64_t evictions = 0;
};

// One change of a shard's memory, for the follower, which makes the same.
struct ReplicaEntry {
  ReplicaNumbers record;                             // after the change
  std::vector<std::pair<uint32_t, LedgerRow>> rows;  // that change, by index
  std::vector<ReplicaPart> parts;  // of the update; empty: only the record changes
  uint64_t number = 0;             // set by ReplicaLog::add()
};

struct ReplicaOptions {
  // How long pushes wait for a lost follower's replacement, before the leader goes on alone. More
  // than 0; infinity: for ever.
  double timeout_s = 30;
  double silence_s = 10;  // from then on a replica that sends nothing is lost
};
// Error kInvalidArgument.
void check(const ReplicaOptions& options);

// The leader's side of a shard with two replicas: the changes that its follower does not have yet,
// and the answer to the question when a push is acknowledged. docs/training.md, section 8.
//
// | state | pushes | next state |
// |---|---|---|
// | waiting: there is no follower | wait | a process follows: copying; after timeout_s the leader |
// |   |   | makes an assignment without follower: alone |
// | alone | are acknowledged | a process follows: copying |
// | copying: it is sent the state, then the changes since | wait | it has the state, and the leader
// |   |   | makes an assignment with it: following; that fails: waiting; it is lost: waiting or
// |   |   | alone, as before |
// | following | wait until it has them | it is lost: waiting |
// | fenced: another process made the assignment | fail, kClosed | none |
//
// Threads: any. add() is called in the order of the changes, by one thread at a time.
class ReplicaLog {
 public:
  // The leader has made `assignment`, for this role and folder.
  ReplicaLog(ReplicaOptions options, std::string folder, std::string role, Assignment assignment);
  ReplicaLog(const ReplicaLog&) = delete;
  ReplicaLog& operator=(const ReplicaLog&) = delete;

  uint64_t epoch() const { return epoch_.load(); }
  uint32_t replicas() const;  // 2: every acknowledged push is on two hosts

  // Whether changes must be given to add().
  bool attached() const;
  // Memory of the entry's parts must stay valid until wait_sent().
  void add(ReplicaEntry entry);
  // Until the follower has all changes so far, or the leader goes on alone. Error kClosed: fenced,
  // or closed.
  void wait_acknowledged();
  // Until no change so far is needed in memory. Bounded: a follower that takes nothing is lost.
  void wait_sent();

  // Serves a process that asks to follow, until it is lost. `copy` copies the shard's state, and
  // calls its argument at the moment of that state, before the next change. Errors kClosed (there
  // is a follower; closed; fenced), kInvalidArgument (another server); those of the connection.
  using Copy = std::function<std::unique_ptr<ShardCheckpoint>(const std::function<void()>& at)>;
  void serve(net::Connection& connection, uint64_t follower, uint64_t server, const Copy& copy);

  void close();  // ends all waits; idempotent

 private:
  enum class State { kWaiting, kAlone, kFenced };

  void send_all(net::Connection& connection, const ShardCheckpoint& state, uint64_t number);
  void receive_all(net::Connection& connection, uint64_t follower);
  void acknowledge(uint64_t number, uint64_t follower);
  bool make_assignment(uint64_t follower);
  void go_alone();
  bool lost(uint64_t heard_ns) const;
  void check_open() const;

  const ReplicaOptions options_;
  const std::string folder_, role_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<uint64_t> epoch_;
  Assignment assignment_;
  bool closed_ = false;
  State state_ = State::kWaiting;
  bool serving_ = false;    // there is a call of serve()
  bool stopping_ = false;   // that call ends: no more messages
  bool attached_ = false;   // changes are kept for the follower
  bool following_ = false;  // the follower has all that is acknowledged, and is in the assignment
  bool in_doubt_ = false;   // an assignment failed, and may have been made nevertheless
  uint64_t last_ = 0;       // numbers of the last change; of the last that was sent;
  uint64_t sent_ = 0;       // that the follower has
  uint64_t acked_ = 0;
  std::deque<ReplicaEntry> entries_;  // not sent
  uint64_t sending_bytes_ = 0;        // of the message that is being sent
  uint64_t alone_ns_ = 0;             // when to go on alone: now_ns()
};

}  // namespace penstock::train
